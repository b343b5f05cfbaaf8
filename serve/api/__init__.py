"""The HTTP API for programs: searches, vectors and pictures under /v1, and what operators ask for beside it.

routes         what each address does
schemas        what goes in and comes out, as JSON
bodies         the three ways of sending a picture
problems       errors, all in the shape of RFC 9457
operations     /healthz, /readyz and /metrics
documentation  the OpenAPI description
"""

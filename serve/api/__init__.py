"""The HTTP API for programs: searches, vectors and pictures under /v1, and what operators ask for beside it.

routes         what each address does
changes        adding images and removing them
listing        which galleries there are
schemas        what goes in and comes out, as JSON
bodies         the three ways of sending a picture
problems       errors, all in the shape of RFC 9457
failures       which problem an error comes to
unknown        which field was meant by one that there is not
operations     /healthz, /readyz and /metrics
documentation  the OpenAPI description
"""

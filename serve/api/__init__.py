"""HTTP API for programs under /v1, and the routes for operators beside it.

routes      routes for searching, embedding and reading, and /healthz, /readyz, /metrics
changes     routes that add and remove images
evaluation  routes of evaluation reports
heatmap     route of heatmaps
objects     route of what stands in an image
pictures    routes of query pictures: previews and shared ones
jobs        routes of long work, and its kinds
context     FastAPI dependencies: gallery and thread pools of a request
bodies      request bodies: JSON, forms and plain bytes
errors      exception handlers
openapi     OpenAPI description
"""

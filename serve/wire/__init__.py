"""What goes over the wire: models of the requests and responses, which server and client share.

fields        types of fields that several models have
queries       requests with images, texts and vectors
hits          answers of searches, and vectors
images        an image of the gallery, and how images are added
items         lists, counts, changes and removals of images
galleries     descriptions of galleries
jobs          jobs and their results
job_requests  requests of jobs
evaluation    evaluation reports
decisions     decisions about images
heatmaps      heatmaps
embeddings    the form of OpenAI's API
problems      problem details

The models of answers load pydantic only: they are what a client needs.
"""

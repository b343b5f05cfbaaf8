#!/bin/sh
# Index a folder of images on a Ray cluster, as a job. Run it on any machine that reaches the cluster's dashboard:
#
#   RAY_API_SERVER_ADDRESS=http://HEAD:8265 sh deploy/ray/index.sh /mnt/shop.gallery /mnt/photos /mnt/model.onnx
#
# The gallery, the images and the model file are at these paths on the head; the images on every machine. SHARDS is a
# folder that all of them reach, or a URI such as s3://bucket/shop; by default it is beside the gallery. Submit the
# same job again to continue one that failed or was stopped, or to add new images.
set -eu
gallery=$1 images=$2 model=$3
shards=${SHARDS:-$gallery.shards}
exec ray job submit -- \
    lookalike index build "$gallery" "$images" --model "$model" --engine ray --ray-address auto --shards "$shards"

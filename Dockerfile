# For NVIDIA GPUs: NVIDIA's container with its own TensorFlow, CUDA, NCCL and MPI.
#   bash scripts/docker/build.sh [--build-arg FROM_IMAGE_NAME=...]
ARG FROM_IMAGE_NAME=nvcr.io/nvidia/tensorflow:24.03-tf2-py3
# hadolint ignore=DL3006
FROM ${FROM_IMAGE_NAME}

# Outside the checkout, which launch.sh mounts over the one in the image. Any user may write to HOME.
ENV BERT_VENV=/opt/bert/venv HOME=/home/bert
ENV PATH=$BERT_VENV/bin:$PATH
WORKDIR /workspace/bert

# setup.sh takes the base's TensorFlow, and its Horovod if it can be imported; else it builds 0.28.1.
# Training on several GPUs needs Horovod, therefore an image without it is not made.
COPY requirements requirements
COPY scripts/setup.sh scripts/
RUN install -d -m 1777 "$HOME" /results \
 && ln -s /results results \
 && PIP_NO_CACHE_DIR=1 bash scripts/setup.sh \
 && python -c 'import horovod.tensorflow' \
 && rm -rf "$HOME/.cache"

COPY . .
RUN python -m bert_tf.base.compiled

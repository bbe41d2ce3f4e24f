# For NVIDIA GPUs: NVIDIA's container with its own TensorFlow, CUDA, NCCL and MPI.
#   bash scripts/docker/build.sh [--build-arg FROM_IMAGE_NAME=...] [--build-arg SETUP=--test]
# 25.02 (TensorFlow 2.17, Python 3.12) is for GPUs from T4 and RTX 20 to Blackwell. V100 and older GPUs, and drivers that
# are too old for it, need nvcr.io/nvidia/tensorflow:24.03-tf2-py3 (TensorFlow 2.15, Python 3.10); see docs/machines.md.
ARG FROM_IMAGE_NAME=nvcr.io/nvidia/tensorflow:25.02-tf2-py3
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

# --test adds the packages for the tests; Horovod is not built again for them.
ARG SETUP=
RUN [ -z "$SETUP" ] || PIP_NO_CACHE_DIR=1 bash scripts/setup.sh "$SETUP"
COPY . .
RUN python -m bert_tf.base.compiled

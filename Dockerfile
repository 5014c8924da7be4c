# One image for everything that runs on the cluster: step nodes, Ray head, Ray workers and the pod that submits a RayJob.
# Ray wants the same Python and Ray everywhere, so build all of them from here. Not built in CI (no Docker daemon there).
#
#   docker build --target gpu -t <registry>/verl-flyte:$(git rev-parse --short HEAD) .
#   docker build --target cpu -t <registry>/verl-flyte:cpu --build-arg PIP_ARGS="--extra-index-url <index of CPU torch>" .

# ---- gpu: vLLM, of the version pinned in pyproject.toml, brings the torch it was built for. A devel image, since some kernels are compiled at first use.
FROM nvidia/cuda:12.9.1-devel-ubuntu24.04 AS gpu-base
# wget: KubeRay's probes of head and workers call it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3.12 python3.12-venv python3.12-dev build-essential git wget \
 && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /root
COPY pyproject.toml LICENSE README.md /tmp/project/
COPY verl_core /tmp/project/verl_core
COPY tasks /tmp/project/tasks
COPY workflows /tmp/project/workflows
# The project itself is taken out again: its code comes from the working directory below, one copy only.
RUN pip install --no-cache-dir "/tmp/project[gpu]" && pip uninstall -y verl-flyte && rm -rf /tmp/project

# ---- cpu: the lock that the tests ran with.
FROM python:3.11-slim-bookworm AS cpu-base
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential git libnuma1 wget \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /root
COPY requirements /tmp/requirements
ARG PIP_ARGS=""
RUN pip install --no-cache-dir --no-deps ${PIP_ARGS} -r /tmp/requirements/cpu.lock \
 && python /tmp/requirements/check.py && rm -rf /tmp/requirements

# ---- what both have. The working directory holds code and nothing else: Ray tasks upload it whole (limit 500 MiB).
# No ENTRYPOINT: Flyte passes `pyflyte-execute ...` as arguments, KubeRay brings its own command.
FROM cpu-base AS cpu
ENV PYTHONPATH=/root RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false
COPY configs /root/configs
COPY verl_core /root/verl_core
COPY tasks /root/tasks
COPY workflows /root/workflows

FROM gpu-base AS gpu
ENV PYTHONPATH=/root RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false
COPY configs /root/configs
COPY verl_core /root/verl_core
COPY tasks /root/tasks
COPY workflows /root/workflows

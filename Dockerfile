# A worker of a cluster, for `webtext` with Ray and object storage: every node of one cluster runs this image, and its
# head gives the commands. Versions are those that pyproject.toml pins, the same as everywhere.
#
#     docker build --tag webtext:0.2 .
#     docker run --rm webtext:0.2 webtext --help
#
# Without torch, so it does not train: that needs an image with the CUDA of its machines.
ARG PYTHON=python:3.12-slim

FROM ${PYTHON} AS build
RUN pip install --no-cache-dir --only-binary=:all: uv==0.13.9
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/webtext
WORKDIR /build
COPY LICENSE pyproject.toml ./
COPY packages packages
RUN uv sync --no-dev --no-editable --package webtext-gpt2-prep --extra ray --extra s3

FROM ${PYTHON}
RUN useradd --create-home --uid 1000 webtext
COPY --from=build /opt/webtext /opt/webtext
ENV PATH=/opt/webtext/bin:${PATH} PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
# Machine code of the numba functions is kept in the home folder, which the user may write.
USER webtext
WORKDIR /home/webtext
CMD ["webtext", "--help"]

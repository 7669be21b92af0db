# An image that serves a model on a CPU: docker compose up, or see docs/how-to/docker.md.
FROM python:3.12-slim AS build
# The CPU build of torch has a tenth of the size of the default one.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
RUN python -m venv /opt/ease
RUN /opt/ease/bin/pip install --no-cache-dir --index-url ${TORCH_INDEX} "torch>=2.6,<2.14" "torchvision>=0.21,<0.29"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/ease/bin/pip install --no-cache-dir ".[serve]"

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home --home-dir /tmp ease && install -d -o ease -g ease -m 0750 /models
COPY --from=build /opt/ease /opt/ease
# Everything that is written goes to /models or /tmp, so that the root file system can be read-only.
ENV PATH=/opt/ease/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# Other machines can reach 0.0.0.0, so the server refuses to start without a token in EASE_TOKEN.
ENTRYPOINT ["ease"]
CMD ["serve", "--model", "/models/model", "--create", "--host", "0.0.0.0", "--port", "8000"]

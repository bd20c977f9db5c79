# The dashboard and the API. Training processes need only `pip install leakline`, not this image.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY agent_client agent_client
COPY server server
COPY templates templates
COPY static static
COPY migrations migrations
COPY examples examples
# With a compiler the server gets its native module, which checks batches in a fifth of the time.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
RUN python -m venv /leakline && /leakline/bin/pip install --no-cache-dir '.[server,postgres]'

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /data leakline
COPY --from=build /leakline /leakline
USER leakline
# SQLite, when no LEAKLINE_DATABASE_URL says otherwise, is /data/.leakline/leakline.db.
WORKDIR /data
VOLUME /data
EXPOSE 8765
ENV PATH=/leakline/bin:$PATH PYTHONUNBUFFERED=1
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/readyz', timeout=4)"]
# Listening beyond loopback is refused without LEAKLINE_INSECURE=1, because there is no login yet: set it only where
# the port is published on 127.0.0.1 or behind something that has a login (docker-compose.yml does the first).
CMD ["leakline", "serve", "--host", "0.0.0.0", "--port", "8765"]

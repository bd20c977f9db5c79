# The dashboard and the API. Training processes need only `pip install leakline`, not this image.
FROM python:3.12.11-slim-bookworm AS build
WORKDIR /source
# With a compiler the server gets its native module, which checks batches in a fifth of the time.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
# Exactly what was tried and audited, by its hashes: `make lock` writes the file, `make audit` reads it.
COPY requirements/server.txt requirements/server.txt
RUN python -m venv /leakline && /leakline/bin/pip install --no-cache-dir --require-hashes -r requirements/server.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY agent_client agent_client
COPY server server
COPY templates templates
COPY static static
COPY migrations migrations
COPY docs docs
COPY examples examples
RUN /leakline/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.12.11-slim-bookworm
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
# It listens beyond loopback, so it asks everybody who they are and does not start while nobody could answer: give it
# LEAKLINE_ADMIN_PASSWORD, or make a token first (docs/access.md). LEAKLINE_INSECURE=1 asks nobody: only behind a login.
CMD ["leakline", "serve", "--host", "0.0.0.0", "--port", "8765"]

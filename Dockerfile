# The dashboard and the API. Training processes need only `pip install leakline`, not this image.
# requirements/dated.txt has the date of this version; `make audit` fails when it is too old.
FROM python:3.13.16-slim-trixie AS build
WORKDIR /source
# The compiler builds the server's native module, which seals batches faster.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
# Exactly the tested and audited packages, by hash: `.ci/lock .venv-audit` writes the files, `make audit` reads them.
COPY requirements/build.txt requirements/server.txt requirements/
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
# Build tools stay in this stage: the copied environment has no pip.
RUN python -m venv --without-pip /leakline && \
    /build/bin/pip --python /leakline/bin/python install --no-cache-dir --require-hashes -r requirements/server.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY agent_client agent_client
COPY server server
COPY templates templates
COPY static static
COPY migrations migrations
COPY docs docs
COPY examples examples
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . && \
    /build/bin/pip --python /leakline/bin/python install --no-cache-dir --no-deps /wheel/*.whl
COPY .ci/bill_of_materials.py /leakline/bill_of_materials.py

FROM python:3.13.16-slim-trixie
RUN useradd --system --uid 10001 --create-home --home-dir /data leakline
# Nothing is installed or compiled at run time.
RUN python -m pip uninstall --yes pip && rm -rf /usr/local/lib/python3.*/ensurepip
COPY --from=build /leakline /leakline
# Contents of the image, including Debian packages, as CycloneDX.
RUN /leakline/bin/python /leakline/bill_of_materials.py > /leakline/bill-of-materials.json
USER leakline
# Without LEAKLINE_DATABASE_URL, SQLite is used: /data/.leakline-server/leakline.db. Nothing else is written, so
# everything except /data and /tmp may be read-only.
WORKDIR /data
VOLUME /data
EXPOSE 8765
ENV PATH=/leakline/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/readyz', timeout=4)"]
# The server listens beyond loopback, so it requires authentication and does not start while nobody could sign in: set
# LEAKLINE_ADMIN_PASSWORD_FILE, or make a token first (docs/access.md). LEAKLINE_INSECURE=1 turns authentication off: use it
# only behind a login.
CMD ["leakline", "serve", "--host", "0.0.0.0", "--port", "8765"]

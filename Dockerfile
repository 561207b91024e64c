# A server of published models: see "Serve over HTTP" in docs/serving.md.
#
#     docker build -t sparsegroup-serve .
#     docker run -p 8000:8000 -v /srv/models:/models:ro sparsegroup-serve /models/clicks
FROM python:3.11-slim

WORKDIR /opt/sparsegroup
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# torch without CUDA; the other packages as this repository is tested with.
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt \
    && pip install --no-cache-dir '.[serve]' --constraint constraints.txt \
    && useradd --system --create-home serve

USER serve
WORKDIR /home/serve
EXPOSE 8000
# Ready once a model is loaded.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["sparsegroup", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models"]

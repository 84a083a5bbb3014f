# docker build -f docker/cpu.Dockerfile -t fastfeed:cpu .
FROM python:3.12-slim
WORKDIR /opt/fastfeed
COPY . .
RUN pip install --no-cache-dir '.[tensorflow-cpu,jax,opencv,metrics,plot]'
WORKDIR /work
# Stacks of other processes (fastfeed diagnose --pid) need: docker run --cap-add SYS_PTRACE
ENTRYPOINT ["fastfeed"]
CMD ["doctor"]

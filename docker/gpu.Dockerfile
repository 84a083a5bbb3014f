# docker build -f docker/gpu.Dockerfile -t fastfeed:gpu .
# docker run --gpus all --cap-add SYS_PTRACE -v "$PWD:/work" fastfeed:gpu diagnose -- train.py
FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /opt/fastfeed
COPY . .
RUN pip install --no-cache-dir '.[tensorflow,torch,gpu,dali,opencv,metrics,plot]'
WORKDIR /work
ENTRYPOINT ["fastfeed"]
CMD ["doctor"]

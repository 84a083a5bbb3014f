"""A script that waits for ever."""

import time


def wait_for_files():
    while True:
        time.sleep(3600)


print("start", flush=True)
wait_for_files()

from __future__ import annotations

from typing import Any

from torch.cuda import memory as memory

available = True  # not torch's: what is_available answers
_current = [0]


def is_available() -> bool:
    return available


def current_device() -> int:
    return _current[-1]


class device:
    def __init__(self, device: Any) -> None:
        self.idx = device if isinstance(device, int) else device.index

    def __enter__(self) -> None:
        _current.append(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        _current.pop()


class Stream:
    def __init__(self, cuda_stream: int = 0) -> None:
        self.cuda_stream = cuda_stream


stream = Stream()  # not torch's: what current_stream answers


def current_stream(device: Any = None) -> Stream:
    return stream

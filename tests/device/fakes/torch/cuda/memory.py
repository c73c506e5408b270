backend = "native"  # not torch's: what get_allocator_backend answers


def get_allocator_backend() -> str:
    return backend

"""Lengths that arrays are padded to, so that few programs are compiled."""


def bucket(length: int, least: int = 16) -> int:
    """The next length of 16, 24, 32, 48, 64, 96 ...: few programs, at most a third of padding."""
    size = least
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size

from array import array

def find_ends(data: memoryview, start: int, ends: array[int]) -> bool:
    """Where texts end that stand one behind the other, each behind its length in 8 bytes.

    Args:
        data: uint8 [size].
        start: the byte where the first length stands.
        ends: uint64 [count], written: the byte behind each text.

    Returns:
        False when a text leaves the data.
    """

def decode(data: memoryview, start: int, ends: array[int]) -> list[str]:
    """The texts that `find_ends` found.

    Raises:
        UnicodeDecodeError: one is no UTF-8.
    """

def merges(lines: list[str], keys: dict[str, int]) -> list[tuple[str, str]] | None:
    """Both halves of each line ``left right``.

    Returns:
        None where a line has no blank behind its first character, or its halves together are no
        key.
    """

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

def merges(lines: list[str], keys: dict[str, int], texts: list[str]) -> list[tuple[str, str]] | int:
    """Both halves of each line ``left right``, as they are in `texts`.

    Args:
        lines: taken from the list one by one.
        keys: places in `texts`.
        texts: all that may be a half, or both together.

    Returns:
        The place of the first line that has no blank behind its first character, or whose halves or
        both together are no key.
    """

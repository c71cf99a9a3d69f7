"""An encoder of protobuf fields, independent of the parser of Lance's manifests and footers."""


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def key(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def span(number: int, data: bytes) -> bytes:
    return key(number, 2) + varint(len(data)) + data

# Plain values as text, and back. Only these cross from the process of a solution to that of its tests, by value: what
# a solution defines itself stays behind, and compares as nothing but itself.
import posix
import sys
from _collections import deque as _deque

_views = tuple(type(x) for x in ({}.keys(), {}.values(), {}.items()))
_streams = (map, filter, zip, enumerate, reversed, type(_ for _ in ()), type(iter([])), type(iter(())), type(iter('')), type(iter({})), type(iter(set())), type(iter(range(0))))
_types = {t.__name__: t for t in (int, float, complex, bool, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, object, type)}
_most = 1 << 24


def encode(value, out, other):
    t = type(value)
    if value is None:
        out.append('N')
    elif t is bool:
        out.append('T' if value else 'F')
    elif isinstance(value, int):
        out.append('i%x;' % int.__index__(value) if t is not int else 'i%x;' % value)
    elif isinstance(value, float):
        out.append('f' + float.hex(value) + ';')
    elif isinstance(value, complex):
        out.append('c' + float.hex(value.real) + ';' + float.hex(value.imag) + ';')
    elif isinstance(value, str):
        text = str.__getitem__(value, slice(None))
        out.append('s%d:%s' % (len(text), text))
    elif isinstance(value, (bytes, bytearray)):
        out.append('%s%d:%s' % ('b' if isinstance(value, bytes) else 'a', len(value), bytes(value).decode('latin-1')))
    elif isinstance(value, list):
        _several('l', list(list.__iter__(value)), out, other)
    elif isinstance(value, tuple):
        _several('t', list(tuple.__iter__(value)), out, other)
    elif isinstance(value, set):
        _several('S', list(set.__iter__(value)), out, other)
    elif isinstance(value, frozenset):
        _several('Z', list(frozenset.__iter__(value)), out, other)
    elif isinstance(value, _deque):
        _several('D', list(_deque.__iter__(value)), out, other)
    elif isinstance(value, dict):
        flat = [x for pair in dict.items(value) for x in pair]
        _several('d', flat, out, other)
    elif t is range:
        _several('r', [value.start, value.stop, value.step], out, other)
    elif t in _views:
        _several('l', list(value), out, other)
    elif t in _streams:
        items = []
        for item in value:
            items.append(item)
            if len(items) > 1000000:
                raise ValueError('an iterator of more than a million values')
        _several('I', items, out, other)
    else:
        for name in _types:
            if _types[name] is value:
                out.append('y%s;' % name)
                return
        parts = _parts(t, value)
        if parts is None:
            other(value, out)
        else:
            _several('x', parts, out, other)


def _parts(t, value):
    # What makes a value of the library: its module, its class and the arguments of that.
    known = sys.modules.get('decimal')
    if known and t is known.Decimal:
        return ['decimal', 'Decimal', str(value)]
    known = sys.modules.get('fractions')
    if known and t is known.Fraction:
        return ['fractions', 'Fraction', value.numerator, value.denominator]
    known = sys.modules.get('datetime')
    if known and t is known.date:
        return ['datetime', 'date', value.year, value.month, value.day]
    if known and t is known.timedelta:
        return ['datetime', 'timedelta', value.days, value.seconds, value.microseconds]
    if known and t in (known.datetime, known.time) and value.tzinfo is None:
        day = [value.year, value.month, value.day] if t is known.datetime else []
        return ['datetime', t.__name__] + day + [value.hour, value.minute, value.second, value.microsecond]
    return None


_library = {'decimal': ('Decimal',), 'fractions': ('Fraction',), 'datetime': ('date', 'timedelta', 'datetime', 'time')}


def _several(tag, items, out, other):
    out.append('%s%d:' % (tag, len(items)))
    for item in items:
        encode(item, out, other)


def decode(text, at, other):
    tag = text[at]
    at += 1
    if tag == 'N':
        return None, at
    if tag == 'T':
        return True, at
    if tag == 'F':
        return False, at
    if tag in 'ifoy':
        end = text.index(';', at)
        word = text[at:end]
        return (int(word, 16) if tag == 'i' else float.fromhex(word) if tag == 'f' else _types[word] if tag == 'y' else other(word)), end + 1
    if tag == 'c':
        middle = text.index(';', at)
        end = text.index(';', middle + 1)
        return complex(float.fromhex(text[at:middle]), float.fromhex(text[middle + 1:end])), end + 1
    end = text.index(':', at)
    n = int(text[at:end])
    at = end + 1
    if tag in 'sba':
        part = text[at:at + n]
        if n < 0 or len(part) != n:
            raise ValueError('a text that is cut')
        return (part if tag == 's' else part.encode('latin-1') if tag == 'b' else bytearray(part, 'latin-1')), at + n
    items = []
    for _ in range(n):
        item, at = decode(text, at, other)
        items.append(item)
    if tag == 'l':
        return items, at
    if tag == 't':
        return tuple(items), at
    if tag == 'S':
        return set(items), at
    if tag == 'Z':
        return frozenset(items), at
    if tag == 'D':
        return _deque(items), at
    if tag == 'd':
        return dict(zip(items[::2], items[1::2])), at
    if tag == 'r':
        return range(*items), at
    if tag == 'I':
        return iter(items), at
    if tag == 'x' and type(items[0]) is str and items[1] in _library.get(items[0], ()):
        return getattr(__import__(items[0]), items[1])(*items[2:]), at
    raise ValueError('a value of no kind')


class Seeded:
    # Finds the module random, and has it begin with the same number each time.
    def __init__(self, seed):
        self.seed = seed

    def find_spec(self, name, path=None, target=None):
        if name != 'random':
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                load = spec.loader.exec_module

                def exec_module(module):
                    load(module)
                    module.seed(self.seed)

                spec.loader.exec_module = exec_module
                return spec


def send(value, other):
    transmit(packed(value, other))


def packed(value, other):
    out = []
    encode(value, out, other)
    data = ''.join(out).encode('utf-8', 'surrogatepass')
    if len(data) > _most:
        raise ValueError('a value of more than 16 MiB')
    return data


def transmit(data):
    data = b'%d\n' % len(data) + data
    while data:
        data = data[posix.write(4, data):]


_pending = b''


def receive(other):
    global _pending
    while b'\n' not in _pending:
        if len(_pending) > 20:
            raise ValueError('no length')
        _more()
    head, _pending = _pending.split(b'\n', 1)
    n = int(head)
    if not 0 <= n <= _most:
        raise ValueError('a wrong length')
    parts, have = [_pending], len(_pending)
    while have < n:
        _pending = b''
        _more()
        parts.append(_pending)
        have += len(_pending)
    data = b''.join(parts)
    _pending = data[n:]
    text = data[:n].decode('utf-8', 'surrogatepass')
    value, at = decode(text, 0, other)
    if at != len(text):
        raise ValueError('more than a value')
    return value


def _more():
    global _pending
    data = posix.read(3, 1 << 20)
    if not data:
        raise EOFError('the other side has ended')
    _pending += data

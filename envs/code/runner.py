# What runners of tests do: parts of pytest and unittest. An assertion counts when it was executed.
import _ast

_scopes = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef, _ast.Lambda)
_functions = (_ast.FunctionDef, _ast.AsyncFunctionDef)


def nodes(node, skip=()):
    # All nodes below one, without those below what is skipped.
    todo = [node]
    while todo:
        node = todo.pop()
        for field in node._fields:
            value = getattr(node, field, None)
            for one in value if type(value) is list else (value,):
                if isinstance(one, _ast.AST) and not isinstance(one, skip):
                    yield one
                    todo.append(one)


def asserts(node):
    # Whether a node is an assertion that can fail.
    return isinstance(node, _ast.Assert) and not (isinstance(node.test, _ast.Constant) and node.test.value)


def must(node):
    # Whether a statement holds an assertion that each run has to reach.
    if isinstance(node, _scopes + (_ast.If,)):
        return False
    return asserts(node) or any(asserts(one) for one in nodes(node, _scopes + (_ast.If, _ast.IfExp)))


def stored(trees):
    # The names that programs define anywhere.
    found = set()
    for tree in trees:
        for node in nodes(tree):
            if isinstance(node, _ast.Name) and not isinstance(node.ctx, _ast.Load):
                found.add(node.id)
            elif isinstance(node, _functions + (_ast.ClassDef,)):
                found.add(node.name)
            elif isinstance(node, _ast.arg):
                found.add(node.arg)
            elif isinstance(node, _ast.alias):
                found.add((node.asname or node.name).split('.')[0])
            elif type(getattr(node, 'name', None)) is str:  # of handlers and patterns
                found.add(node.name)
    return found


def loaded(trees):
    return {node.id for tree in trees for node in nodes(tree) if isinstance(node, _ast.Name) and isinstance(node.ctx, _ast.Load)}


def caught(trees):
    # The names of exceptions that programs expect.
    found = []
    for tree in trees:
        for node in nodes(tree):
            if isinstance(node, _ast.ExceptHandler) and node.type:
                found += [node.type] + list(nodes(node.type))
            elif isinstance(node, _ast.Call) and getattr(node.func, 'attr', getattr(node.func, 'id', '')) in ('raises', 'assertRaises', 'assertRaisesRegex') and node.args:
                found += [node.args[0]] + list(nodes(node.args[0]))
    return {node.id for node in found if isinstance(node, _ast.Name)}


def mark(statements, key, into):
    # Adds calls that tell of assertions when they are reached; into gets the test functions, with whether they must reach one.
    changed = []
    for node in statements:
        inner = key
        if isinstance(node, _functions) and '.' not in key and (not key or key.endswith(':')):
            inner = key.replace(':', '.') + node.name
            if node.name.startswith('test'):
                into[inner] = any(must(one) for one in node.body)
        elif isinstance(node, _ast.ClassDef) and not key:
            inner = node.name + ':'
        if asserts(node) and not isinstance(node.test, _ast.Constant):
            changed.append(_call('__reached__', key, node))
        guarded = isinstance(node, _ast.Try) and any(_fails(one) for one in node.body + node.orelse)
        for field in ('body', 'orelse', 'finalbody'):
            if type(getattr(node, field, None)) is list:
                setattr(node, field, mark(getattr(node, field), inner, into))
        for one in getattr(node, 'handlers', ()) or ():
            one.body = mark(one.body, inner, into)
            if guarded:
                one.body.insert(0, _call('__caught__', key, one))
        for one in getattr(node, 'cases', ()) or ():
            one.body = mark(one.body, inner, into)
        changed.append(node)
    return changed


def _fails(node):
    # Whether a statement says that an exception should have come before it.
    if isinstance(node, _ast.Assert):
        return isinstance(node.test, _ast.Constant) and not node.test.value
    if isinstance(node, _ast.Expr) and isinstance(node.value, _ast.Call):
        return getattr(node.value.func, 'attr', '') == 'fail'
    return isinstance(node, _ast.Raise)


def _call(name, key, at):
    where = dict(lineno=at.lineno, col_offset=at.col_offset, end_lineno=at.lineno, end_col_offset=at.col_offset)
    return _ast.Expr(_ast.Call(_ast.Name(name, _ast.Load(), **where), [_ast.Constant(key.rstrip(':'), None, **where)], [], **where), **where)


class Skipped(Exception):
    pass


class Runner:
    def __init__(self, space):
        self.space = space
        self.count, self.ran, self.current = 0, set(), ''
        self.expects = {}  # test functions, with whether they must reach an assertion

    def reached(self, key=None):
        self.count += 1
        self.ran.add(self.current if key is None else key)

    def caught(self, key):
        if not issubclass(sys.exc_info()[0], AssertionError):
            self.reached(key)

    def patched(self, unittest):
        # Has the assertions of unittest count, and its main leave the tests to us.
        def counted(method):
            def call(*args, **kwargs):
                self.reached()
                return method(*args, **kwargs)
            return call

        case = unittest.TestCase
        for name in dir(case):
            if name.startswith('assert') and callable(getattr(case, name)) or name == 'fail':
                setattr(case, name, counted(getattr(case, name)))
        unittest.main = lambda *args, **kwargs: None

    def collected(self):
        # The tests that a runner would find and that were not called: key, whether one must reach an assertion, function.
        found = []
        for name, value in list(self.space.items()):
            if getattr(value, '__module__', None) != self.space['__name__'] or type(value).__name__ in ('Named', 'Remote'):
                continue
            if isinstance(value, type):
                if self._is_case(value):
                    found += self._cases(value)
                elif name.startswith('Test') and '__init__' not in value.__dict__:
                    for method in [m for c in reversed(value.__mro__) for m in c.__dict__ if m.startswith('test')]:
                        found += self._variants(name + '.' + method, getattr(value, method), value, method)
            elif name.startswith('test') and hasattr(value, '__code__') and name not in self.ran:
                found += self._variants(name, value, None, name)
        return found

    def _is_case(self, value):
        unittest = sys.modules.get('unittest')
        return bool(unittest) and issubclass(value, unittest.TestCase)

    def _cases(self, kind):
        begun = []

        def run(name):
            if not begun:
                begun.append(True)
                kind.setUpClass()
            kind(name).debug()

        names = [name for name in sorted(dir(kind)) if name.startswith('test') and callable(getattr(kind, name))]
        return [(kind.__name__ + '.' + name, self.expects.get(kind.__name__ + '.' + name, False), lambda name=name: run(name)) for name in names]

    def _variants(self, key, function, kind, name):
        marks = list(getattr(function, '__marks__', ())) + list(getattr(kind, '__marks__', ()))
        if any(m == 'skip' or m == 'xfail' or m == 'skipif' and args and args[0] for m, args, _ in marks):
            return []
        rows = [{}]
        for m, args, kwargs in marks:
            if m == 'parametrize':
                names, values = (args + tuple(kwargs[k] for k in ('argnames', 'argvalues') if k in kwargs))[:2]
                names = [n.strip() for n in names.split(',')] if isinstance(names, str) else list(names)
                some = []
                for value in values:
                    value = value.values if isinstance(value, Param) else value if len(names) > 1 else (value,)
                    some.append(dict(zip(names, value)))
                rows = [{**row, **one} for row in rows for one in some]
        return [(key, self.expects.get(key, False), lambda row=row: self._run(kind, name, row)) for row in rows]

    def _run(self, kind, name, row):
        owner = kind() if kind else None
        endings = []
        fixtures = {n: v for n, v in self.space.items() if hasattr(v, '__fixture__')}
        if kind:
            fixtures.update((n, getattr(owner, n)) for n in dir(kind) if hasattr(getattr(kind, n, None), '__fixture__'))
        made = dict(row)

        def value(wanted):
            if wanted not in made:
                if wanted not in fixtures:
                    raise Skipped('fixture %s is not supported' % wanted)
                made[wanted] = got = called(fixtures[wanted])
                if hasattr(got, '__next__'):
                    made[wanted] = next(got)
                    endings.append(lambda: next(got, None))
            return made[wanted]

        def called(function):
            code = function.__code__
            wanted = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount][1 if hasattr(function, '__self__') else 0:]
            given = code.co_argcount - len(getattr(function, '__defaults__', None) or ())
            wanted = [n for i, n in enumerate(wanted) if n in made or n in fixtures or i < given - (1 if hasattr(function, '__self__') else 0)]
            result = function(**{n: value(n) for n in wanted})
            return finished(result)

        def hook(owner, name):
            if hasattr(owner, name):
                function = getattr(owner, name)
                return function(*[None] * (function.__code__.co_argcount - (1 if hasattr(function, '__self__') else 0)))

        try:
            if kind:
                for before, after in ('setup_class', 'teardown_class'), ('setup_method', 'teardown_method'):
                    endings.append(lambda after=after: hook(owner, after))
                    hook(owner, before)
            for n in fixtures:
                if fixtures[n].__fixture__.get('autouse'):
                    value(n)
            called(getattr(owner, name) if kind else self.space[name])
        finally:
            for end in reversed(endings):
                end()


def finished(result):
    # The result of what may be a coroutine.
    if type(result).__name__ == 'coroutine':
        import asyncio
        return asyncio.run(result)
    return result


class Param:
    def __init__(self, *values, **_):
        self.values = values


class _Marks:
    def __getattr__(self, name):
        def mark(*args, **kwargs):
            bare = name != 'parametrize' and len(args) == 1 and not kwargs and hasattr(args[0], '__name__')

            def attach(f):
                f.__marks__ = list(f.__dict__.get('__marks__', ())) + [(name, () if bare else args, kwargs)]
                return f

            return attach(args[0]) if bare else attach

        return mark


class _Raises:
    def __init__(self, kinds, match):
        self.kinds, self.match, self.value, self.type = kinds, match, None, None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _):
        if kind is None:
            raise AssertionError('no exception came')
        self.value, self.type = value, kind
        if not issubclass(kind, self.kinds):
            return False
        if self.match is not None:
            import re
            if not re.search(self.match, str(value)):
                raise AssertionError('the exception says something else')
        return True


class _Approx:
    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, other):
        return self._near(other, self.expected)

    __hash__ = None

    def _near(self, got, want):
        if isinstance(want, dict):
            return isinstance(got, dict) and got.keys() == want.keys() and all(self._near(got[k], want[k]) for k in want)
        if isinstance(want, (list, tuple)):
            return isinstance(got, (list, tuple)) and len(got) == len(want) and all(map(self._near, got, want))
        if got == want or self.nan_ok and got != got and want != want:
            return True
        try:
            near = max(self.abs if self.abs is not None else 1e-12, (self.rel if self.rel is not None else 0 if self.abs is not None else 1e-6) * abs(want))
            return abs(got - want) <= near < float('inf')
        except TypeError:
            return False


def pytest(runner):
    # A module that does what tests most often ask of pytest.
    module = type(sys)('pytest')

    def raises(kinds, *args, match=None, **kwargs):
        runner.reached()
        expected = _Raises(kinds, match)
        if not args:
            return expected
        with expected:
            args[0](*args[1:], **kwargs)
        return expected

    def fail(reason='', *_, **__):
        runner.reached()
        raise AssertionError(reason)

    def skip(reason='', **_):
        raise Skipped(reason)

    def fixture(function=None, **options):
        def attach(f):
            if options.get('params'):
                raise NotImplementedError('fixtures with params are not supported')
            f.__fixture__ = options
            return f

        return attach(function) if function else attach

    module.__dict__.update(raises=raises, fail=fail, skip=skip, fixture=fixture, approx=_Approx, param=Param, mark=_Marks(), main=lambda *_, **__: 0)
    return module

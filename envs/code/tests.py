# The process of the tests: it runs them against the solution in another process, and tells of each how it went.
def main():
    del sys.path[0]  # nothing beside this file is a module
    source = sys.stdin.buffer.read().decode('utf-8')
    (nonce, mode, entry, setup, units, defined, values, reference, seed), _ = decode(source, 0, None)
    sys.meta_path.insert(0, Seeded(seed))

    class Gone(Exception):
        pass

    class Foreign(Exception):
        pass

    state = {'gone': None, 'foreign': False, 'told': False}

    def own(value, out):
        if type(value) is Remote:
            out.append('o%d;' % object.__getattribute__(value, 'number'))
        else:
            raise TypeError('tests cannot pass a %s to a solution' % type(value).__name__)

    def remote(word):
        number, kind = word.split(':', 1)
        return waiting(Remote(int(number))) if kind == 'coroutine' else Remote(int(number))

    async def waiting(coroutine):
        return ask('await', coroutine, '', (), {})

    def exchange(message):
        if state['gone']:
            raise Gone(state['gone'])
        try:
            if message is not None:
                send(message, own)
            return receive(remote)
        except (EOFError, OSError):
            state['gone'] = 'the program ended before its tests did'
        except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError, MemoryError) as e:
            state['gone'] = 'the program gave an answer that is none'
            if isinstance(e, TypeError) and message is not None and 'tests cannot' in str(e):
                state['gone'] = None
                raise
        raise Gone(state['gone'])

    def ask(what, target, name, args, kwargs):
        if what == 'call' and mode == 'script':
            what = 'overheard'
        answer = exchange([what, target, name, list(args), dict(kwargs)])
        if type(answer) is list and len(answer) == 4 and answer[0] == 'value' and type(answer[2]) is list and type(answer[3]) is str:
            if what == 'overheard':
                sys.stdout.write(answer[3])
            for mine, theirs in zip(args, answer[2]):  # what the solution changed in place
                if type(mine) is type(theirs) and type(mine) in (list, set, dict, bytearray):
                    if type(mine) in (list, bytearray):
                        mine[:] = theirs
                    else:
                        mine.clear()
                        mine.update(theirs)
            return answer[1]
        state['foreign'] = True
        raise failure(answer)

    kinds = {}  # exceptions of the solution that tests expect

    def failure(answer):
        import builtins
        if not (type(answer) is list and len(answer) == 5 and answer[0] == 'raise' and type(answer[3]) is list and all(type(x) is str for x in answer[1:3] + answer[3] + answer[4:])):
            return Gone('the program gave an answer that is none')
        kind = getattr(builtins, answer[1], None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, (AssertionError, UnicodeError, SyntaxError, StopIteration, StopAsyncIteration)):
            kind = Foreign
        for name in answer[3]:
            if name in kinds:
                kind = kinds[name]
                break
        e = kind(answer[4])
        e.told = answer[2]
        return e

    class Remote:
        __slots__ = ('number',)

        def __init__(self, number):
            object.__setattr__(self, 'number', number)

        def __getattr__(self, name):
            return ask('get', self, name, (), {})

        def __setattr__(self, name, value):
            ask('set', self, name, (value,), {})

        def __repr__(self):
            return ask('call', self, '__repr__', (), {})

        def __str__(self):
            return ask('call', self, '__str__', (), {})

        def __call__(self, *args, **kwargs):
            return ask('call', self, '__call__', args, kwargs)

    class Named:
        def __init__(self, name):
            self.name = name

        def __call__(self, *args, **kwargs):
            return ask('call', None, self.name, args, kwargs)

        def __getattr__(self, name):
            if name.startswith('__'):
                raise AttributeError(name)
            return getattr(ask('get', None, self.name, (), {}), name)

    def tell(text):
        data = ('\n' + nonce + text + '\n').encode('utf-8', 'replace')
        while data:
            data = data[posix.write(1, data):]

    def names(code):
        found = set(code.co_names)
        for c in code.co_consts:
            if hasattr(c, 'co_names'):
                found |= names(c)
        return found

    def attempt(f):
        said, note = 'P', ''
        state['foreign'] = False
        try:
            f()
        except AssertionError:
            said, note = 'W', 'a test failed'
        except Gone as e:
            said, note = 'G', str(e)
        except Skipped as e:
            said, note = 'S', str(e)
        except SystemExit as e:
            if e.code:
                said, note = 'W', 'the tests ended with status %s' % e.code
        except BaseException as e:
            said, note = ('E' if state['foreign'] or isinstance(e, NameError) else 'W'), '%s: %s' % (type(e).__name__, e)
            if type(e).__name__ == 'SkipTest':
                said = 'S'
            elif hasattr(e, 'told'):
                note = e.told
        if said in 'PS' and state['gone']:  # which tests may have taken for an exception that they wait for
            said, note = 'G', state['gone']
        return said, note

    def report(said, note):
        # One message is enough, and many would be too much to write.
        if said != 'P':
            note, state['told'] = '' if state['told'] else note, True
        tell(said + ascii(note[:1000])[1:-1])

    def script(run, text):
        import _io
        stdout, sys.stdout = sys.stdout, _io.StringIO()

        said, note = attempt(lambda: run(text))
        written, sys.stdout = sys.stdout.getvalue(), stdout
        tell('#1')
        tell('O' + written.encode('utf-8', 'replace').hex())
        report(said, note)
        tell('.')

    import builtins
    library = getattr(sys, 'stdlib_module_names', ('math', 're', 'cmath', 'collections', 'itertools', 'functools', 'string', 'random', 'heapq', 'statistics', 'datetime'))

    def parse(text):
        return compile(text, 'tests.py', 'exec', 0x400)

    def beginning(text):
        try:
            return parse(text)
        except SyntaxError:
            return parse(text + '\n    pass\n')  # the beginning of a program may end with the head of a function

    # Tests have their own names, and those that the solution is known to define. What else a program brings has no meaning
    # in them: it could be a helper that says what they want to hear.
    try:
        before = [beginning(text) for text in setup]
        trees = [parse(text) for text in units]
    except SyntaxError as e:
        tell('X' + ascii('the tests do not parse: SyntaxError: %s' % e)[1:-1])
        return
    known = stored(before) | stored(trees) | set(library) | set(dir(builtins)) | {'__name__', '__file__', '__doc__'}
    of = [name.strip() for name in entry.split(',') if name.strip()]
    ours = set(defined) | set(values) | set(of)
    unknown = sorted(loaded(before + trees) - known)
    if not ours:
        if len(unknown) > 1:
            tell('X' + ascii('the tests use %s, which they do not define; import what is theirs, and name what the program defines in entry_point' % ', '.join(unknown))[1:-1])
            return
        ours.update(unknown)
    first = exchange(None)
    if not (type(first) is list and first == ['loaded']):
        e = failure(first)
        tell('!' + ascii(getattr(e, 'told', str(e)))[1:-1])
        return
    space = {'__name__': 'tests', '__builtins__': builtins}
    runner = Runner(space)
    space['__reached__'], space['__caught__'] = runner.reached, runner.caught
    solution = type(sys)('solution')
    solution.__getattr__ = Named
    sys.modules['solution'], sys.modules['pytest'] = solution, pytest(runner)
    if any('unittest' in text for text in units):
        import unittest
        runner.patched(unittest)
    expected = caught(trees)

    def named(name):
        if name in expected and not hasattr(builtins, name):
            kinds[name] = type(name, (Exception,), {})
            return kinds[name]
        return Named(name)

    def bind(code):
        # Gives the names of a piece of tests a meaning.
        for name in names(code):
            if name in space and name not in of:
                continue
            if name in ours and (name in values or mode == 'script'):
                try:
                    space[name] = ask('get', None, name, (), {})
                except BaseException:
                    pass  # it is missing
            elif name in ours:
                space[name] = named(name)  # what a solution is known to define it may call as what is built in
            elif name in library and name not in space and not hasattr(builtins, name):
                space[name] = __import__(name)  # which tests forgot to import

    def run(tree):
        code = compile(tree, 'tests.py', 'exec')
        bind(code)
        exec(code, space)

    for tree in before:
        run(tree)
    if mode == 'script':
        script(run, trees[0])
        return
    if mode != 'check':
        space['__name__'] = '__main__'
    steps = []  # code and whether it must reach an assertion
    called = False  # whether the tests have the solution's own name for something else than the solution
    for tree in trees:
        inner = []
        for node in tree.body:
            if mode == 'check' and isinstance(node, _ast.FunctionDef) and node.name == 'check':
                if node.args.args:
                    space[node.args.args[0].arg] = Named(entry)
                    called = node.args.args[0].arg != entry
                for one in node.body:
                    if isinstance(one, _ast.Return):
                        break
                    inner.append(one)
            elif mode != 'check':
                inner.append(node)
            elif not (isinstance(node, _ast.Expr) and isinstance(node.value, _ast.Call) and getattr(node.value.func, 'id', '') == 'check'):
                run(_ast.Module([node], []))
        groups = [inner] if mode == 'each' else [[node] for node in inner]
        for group in groups:
            needs = mode == 'each' or any(must(node) for node in group)
            steps.append((compile(_ast.Module(mark(group, '', runner.expects), []), 'tests.py', 'exec'), needs))
    for code, _ in steps:
        bind(code)
    if called and reference and any(entry in names(code) for code, _ in steps):
        # What the answer is compared with is not to be another one of the same solution.
        known = {'__name__': 'reference', '__builtins__': builtins}
        exec(compile(reference, 'reference.py', 'exec'), known)
        space[entry] = known[entry]
    done = 0

    def judge(f, needs, key=''):
        nonlocal done
        count, runner.current = runner.count, key
        said, note = attempt(f)
        if said == 'P' and needs and runner.count == count:
            said, note = 'W', 'no assertion was reached'
        if said == 'S':
            return
        if needs or runner.count > count:
            done += 1
            report(said, note)
        elif said != 'P':
            report(said.lower(), note)

    def one(code):
        # A test that stands alone may be a function, which its runner would call.
        count = runner.count
        exec(code, space)
        if runner.count == count:
            for key, _, test in runner.collected():
                runner.current = key
                test()
                runner.ran.add(key)

    tell('#%d' % (sum(needs for _, needs in steps) + sum(runner.expects.values())))
    for code, needs in steps:
        judge((lambda: one(code)) if mode == 'each' else (lambda: exec(code, space)), needs)
    if mode == 'split':
        tests = runner.collected()
        tell('#%d' % (done + len(tests)))
        for key, needs, test in tests:
            judge(test, needs, key)
    tell('#%d' % done)
    tell('.')


main()
posix._exit(0)  # there is nothing to tidy up, and that takes time

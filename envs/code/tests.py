# The process of the tests: it runs them against the solution in another process, and tells of each how it went.
def main():
    del sys.path[0]  # nothing beside this file is a module
    source = sys.stdin.buffer.read().decode('utf-8')
    (nonce, mode, entry, setup, units, defined, reference, seed), _ = decode(source, 0, None)
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
        return Remote(int(word.split(':')[0]))

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

    def failure(answer):
        import builtins
        if not (type(answer) is list and len(answer) == 3 and answer[0] == 'raise' and type(answer[1]) is str and type(answer[2]) is str):
            return Gone('the program gave an answer that is none')
        kind = getattr(builtins, answer[1], None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, (AssertionError, UnicodeError, SyntaxError, StopIteration, StopAsyncIteration)):
            kind = Foreign
        return kind(answer[2])

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
        except BaseException as e:
            said, note = ('E' if state['foreign'] else 'W'), '%s: %s' % (type(e).__name__, e)
            if state['foreign']:
                note = str(e)
        if said == 'P' and state['gone']:  # which tests may have taken for an exception that they wait for
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

        def whole():
            try:
                run(text)
            except SystemExit as e:
                if e.code:
                    raise

        said, note = attempt(whole)
        written, sys.stdout = sys.stdout.getvalue(), stdout
        tell('#1')
        tell('O' + written.encode('utf-8', 'replace').hex())
        report(said, note)
        tell('.')

    first = exchange(None)
    if not (type(first) is list and first == ['loaded']):
        e = failure(first)
        tell('!' + ascii(str(e))[1:-1])
        return
    import builtins
    library = getattr(sys, 'stdlib_module_names', ('math', 're', 'cmath', 'collections', 'itertools', 'functools', 'string', 'random', 'heapq', 'statistics', 'datetime'))
    if entry:
        defined = defined + [entry]
    space = {'__name__': 'tests', '__builtins__': builtins}

    def bind(code):
        # Gives the names of a piece of tests a meaning. What stands beside the tests has none from the solution, which
        # could bring one that says what they want to hear.
        for name in names(code):
            if name in space and name != entry:
                continue
            if name in defined:
                # What a solution is known to define it may call as what is built in; no other name of it counts.
                space[name] = Named(name)
            elif name in space or hasattr(builtins, name):
                continue
            elif name in library:
                space[name] = __import__(name)  # which tests forgot to import
            elif mode != 'script':
                space[name] = Named(name)
            else:
                try:
                    space[name] = ask('get', None, name, (), {})
                except BaseException:
                    pass  # a name of the script's own, or one that is missing

    def run(text):
        code = compile(text, 'tests.py', 'exec')
        bind(code)
        exec(code, space)

    for text in setup:
        try:
            compile(text, 'tests.py', 'exec')
        except SyntaxError:
            text += '\n    pass\n'  # the beginning of a program may end with the head of a function
        run(text)
    if mode == 'script':
        script(run, units[0])
        return
    parsed = []
    called = False  # whether the tests have the solution's own name for something else than the solution
    if mode == 'each':
        parsed = [(compile(text, 'tests.py', 'exec'), True) for text in units]
    else:
        import _ast

        def asserted(node):
            if isinstance(node, _ast.Assert):
                return True
            for field in getattr(node, '_fields', ()):
                value = getattr(node, field, None)
                for one in value if type(value) is list else [value]:
                    if isinstance(one, _ast.AST) and asserted(one):
                        return True
            return False

        for text in units:
            for node in compile(text, 'tests.py', 'exec', 0x400).body:
                inner = [node]
                if mode == 'check' and isinstance(node, _ast.FunctionDef) and node.name == 'check':
                    if node.args.args:
                        space[node.args.args[0].arg] = Named(entry)
                        called = node.args.args[0].arg != entry
                    inner = node.body
                elif mode == 'check':
                    if not (isinstance(node, _ast.Expr) and isinstance(node.value, _ast.Call) and getattr(node.value.func, 'id', '') == 'check'):
                        run(_ast.Module([node], []))
                    continue
                for one in inner:
                    if isinstance(one, _ast.Return):
                        break
                    parsed.append((compile(_ast.Module([one], []), 'tests.py', 'exec'), asserted(one)))
    for code, _ in parsed:
        bind(code)
    if called and reference and any(entry in names(code) for code, _ in parsed):
        # What the answer is compared with is not to be another one of the same solution.
        known = {'__name__': 'reference', '__builtins__': builtins}
        exec(compile(reference, 'reference.py', 'exec'), known)
        space[entry] = known[entry]
    tell('#%d' % sum(test for _, test in parsed))
    for code, test in parsed:
        said, note = attempt(lambda: exec(code, space))
        if test or said != 'P':
            report(said if test else said.lower(), note)
    tell('.')


main()
posix._exit(0)  # there is nothing to tidy up, and that takes time

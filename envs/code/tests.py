# The process of the tests: it runs them against the solution in another process, and tells of each how it went.
def main():
    import sys
    source = sys.stdin.buffer.read().decode('utf-8')
    (nonce, mode, entry, setup, units, defined), _ = decode(source, 0, None)

    class Gone(Exception):
        pass

    class Foreign(Exception):
        pass

    state = {'gone': None, 'foreign': False}

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
        answer = exchange([what, target, name, list(args), dict(kwargs)])
        if type(answer) is list and len(answer) == 3 and answer[0] == 'value' and type(answer[2]) is list:
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

    first = exchange(None)
    if not (type(first) is list and first == ['loaded']):
        e = failure(first)
        tell('!' + ascii(str(e))[1:-1])
        return
    import builtins
    space = {'__name__': 'tests', '__builtins__': builtins}
    for text in setup:
        exec(compile(text, 'tests.py', 'exec'), space)
    parsed, asserted = [], lambda node: True
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
            body = compile(text, 'tests.py', 'exec', 0x400).body
            for node in body:
                inner = [node]
                if mode == 'check' and isinstance(node, _ast.FunctionDef) and node.name == 'check':
                    if node.args.args:
                        space[node.args.args[0].arg] = Named(entry)
                    inner = node.body
                elif mode == 'check':
                    exec(compile(_ast.Module([node], []), 'tests.py', 'exec'), space)
                    continue
                for one in inner:
                    if isinstance(one, _ast.Return):
                        break
                    parsed.append((compile(_ast.Module([one], []), 'tests.py', 'exec'), asserted(one)))
    library = getattr(sys, 'stdlib_module_names', ('math', 're', 'cmath', 'collections', 'itertools', 'functools', 'string', 'random', 'heapq', 'statistics', 'datetime'))
    if entry:
        defined = defined + [entry]
    for code, _ in parsed:
        for name in names(code):
            # What a solution is known to define it may call as what is built in; no other name of it counts.
            if name in defined:
                space[name] = Named(name)
            elif name not in space and not hasattr(builtins, name):
                # Of a module that tests forgot to import a solution could bring one that says what they want to hear.
                space[name] = __import__(name) if name in library else Named(name)
    tell('#%d' % sum(test for _, test in parsed))
    for code, test in parsed:
        said, note = 'P', ''
        state['foreign'] = False
        try:
            exec(code, space)
        except AssertionError:
            said, note = 'W', 'a test failed'
        except Gone as e:
            said, note = 'G', str(e)
        except BaseException as e:
            said, note = ('E' if state['foreign'] else 'W'), '%s: %s' % (type(e).__name__, e)
            if state['foreign']:
                note = str(e)
        if test or said != 'P':
            tell((said if test else said.lower()) + ascii(note[:1000])[1:-1])
    tell('.')


main()
posix._exit(0)  # there is nothing to tidy up, and that takes time

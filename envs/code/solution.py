# The process of a solution: it defines what the solution defines, and calls it as it is asked to.
def main():
    import _io
    sys.meta_path.insert(0, Seeded(0))
    with open('solution.txt', encoding='utf-8', errors='surrogatepass', newline='') as f:
        text = f.read()
    module = type(sys)('solution')
    sys.modules['solution'] = module
    space = module.__dict__
    objects = []

    def keep(value, out):
        objects.append(value)
        out.append('o%d:%s;' % (len(objects) - 1, type(value).__name__.replace(';', '')))

    def known(word):
        return objects[int(word)]

    def failed(e):
        name, text, own, said = 'Exception', '', [], ''
        for c in type(e).__mro__:
            if c.__module__ == 'builtins':
                name = c.__name__
                break
            own.append(str(c.__name__))
        try:
            text = '%s: %s' % (type(e).__name__, e)
            tb, line = e.__traceback__, 0
            while tb is not None:
                if tb.tb_frame.f_code.co_filename == 'solution.py':
                    line = tb.tb_lineno
                tb = tb.tb_next
            line = line or (getattr(e, 'lineno', 0) if isinstance(e, SyntaxError) else 0)
            if line:
                text = 'line %d: %s' % (line, text)
            said = e.args[0] if len(e.args) == 1 and type(e.args[0]) is str else str(e)
        except BaseException:
            pass
        send(['raise', name, text[:2000], own[:8], said[:2000]], keep)

    loops = []

    def awaited(value):
        import asyncio

        async def wait():
            return await value

        if not loops:
            loops.append(asyncio.new_event_loop())
        return loops[0].run_until_complete(wait())

    try:
        exec(compile(text, 'solution.py', 'exec'), space)
    except BaseException as e:
        failed(e)
        return
    send(['loaded'], keep)
    while True:
        what, target, name, args, kwargs = receive(known)
        try:
            if what == 'await':
                f = awaited
                args = [target]
            elif what == 'set':
                f = setattr
                args = [target, name] + args
            elif target is not None:
                f = getattr(target, name)
            elif name in space:
                f = space[name]
            else:
                raise NameError("name '%s' is not defined" % name)
            stdout, written = sys.stdout, None
            if what == 'overheard':
                sys.stdout = written = _io.StringIO()
            try:
                result = f if what == 'get' else f(*args, **kwargs)
            finally:
                sys.stdout = stdout
            # What cannot be sent is the solution's fault.
            message = packed(['value', result, args, written.getvalue() if written else ''], keep)
        except EOFError:
            return
        except BaseException as e:
            failed(e)
        else:
            transmit(message)


try:
    main()
except (EOFError, BrokenPipeError):
    pass

package code

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// newTestGrader returns a Python grader, or skips the test without Python.
func newTestGrader(t testing.TB) *Grader {
	t.Helper()
	j, err := NewGrader(t.Context(), sandbox.Python, "", 2*time.Second, false)
	if err != nil {
		t.Skip(err)
	}
	j.limits.Memory, j.limits.Wall = 256<<20, 3*time.Minute // for busy machines; no program here waits for anything
	t.Cleanup(func() {
		expect.NoError(t, j.Close(), "Close")
	})
	return j
}

// TestNotGraded makes the sandbox fail: the program is not graded then, and is graded when the sandbox works again.
func TestNotGraded(t *testing.T) {
	j := newTestGrader(t)
	works := j.language
	broken := *works
	broken.Interpreter = "/nowhere/python"
	problems := must.Get(Read(&dataset.Faults{}, must.File(t, "p.jsonl", `{"name":"asserted","prompt":"Double.","tests":[{"call":"f(2)","expect":"4"}]}`+"\n"+`{"name":"compared","prompt":"Say 4.","tests":[{"input":"","output":"4"}]}`), "python", ""))(t)
	o := &options{}
	must.Do(t, (envs.Settings{}).Set(o))
	for i, program := range []string{"def f(x): return 2*x", "print(4)"} {
		row, p := completion{&problems[i], program}, problems[i].Name
		j.language = &broken
		one, err := o.graded(t.Context(), j, row)
		expect.True(t, err == nil && one.Info == nil && one.Problem == p && strings.Contains(one.Failure, "starting /nowhere/python"), "%s: %+v, %v", p, one, err)
		e := &episode{task: &task{options: o, grader: j}, problem: problems[i]}
		step, err := e.Step(t.Context(), envs.Action{Text: program, Stop: envs.StopEnd})
		expect.True(t, errors.Is(err, envs.ErrNotScored) && step.Reward == 0 && step.Info == nil, "%s: %+v, %v", p, step, err)
		j.language = works
		one, err = o.graded(t.Context(), j, row)
		expect.True(t, err == nil && one.Info != nil && one.Info.Correct, "%s: %+v, %v, when the sandbox works again", p, one, err)
	}
}

func TestLastLines(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "a\nb": "a\nb", "a\nb\n\x1b[31mc\x1b[0m\n": "b\nc"} {
		expect.Equal(t, want, lastLines(text, 2))
	}
}

// TestFalsePasses: tests that are easy to fool, and programs that try.
func TestFalsePasses(t *testing.T) {
	j := newTestGrader(t)
	for _, test := range []struct{ name, assert, program string }{
		{"a module of its own", "assert math.isclose(f(2), 1.5)", "class math:\n  isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 0"},
		{"the end of an iterator", "assert all(map(f, [1, 2, 3]))", "def f(x): raise StopIteration"},
		{"an object that is true", "assert f(1) and f(1) > 0", "class K:\n  __gt__ = lambda s, o: True\ndef f(x): return K()"},
		{"an object with a length", "assert len(f(1)) == 3", "class K:\n  __len__ = lambda s: 3\ndef f(x): return K()"},
		{"an object that holds all", "assert 7 in f(1)", "class K:\n  __contains__ = lambda s, o: True\ndef f(x): return K()"},
		{"an object that is called", "assert isinstance(f(1), list)", "class K(list):\n  pass\nK.__class__ = property(lambda s: list)\ndef f(x):\n  class L:\n    __class__ = list\n  return L()"},
		{"a number near to all", "assert abs(f(1) - 7) < 1e-6", "class K(float):\n  __sub__ = lambda s, o: 0.0\ndef f(x): return K(1)"},
		{"not a number", "assert abs(f(1) - 7) < 1e-6", "def f(x): return float('nan')"},
		{"a set that is all sets", "assert f(1) == {1, 2}", "class K(set):\n  __eq__ = lambda s, o: True\ndef f(x): return K()"},
		{"a dictionary that is all", "assert f(1)['a'] == 2", "class K(dict):\n  __missing__ = lambda s, k: 2\ndef f(x): return K()"},
		{"ends the tests", "assert f(1) == 2", "import atexit, os, signal\natexit.register(os._exit, 0)\ndef f(x):\n  for p in range(1, 30):\n    try: os.kill(p, 9)\n    except OSError: pass"},
		{"the answer of before", "for i in range(3): assert f(i) == i * 7", "last = [0]\ndef f(x): return 0"},
		{"built-ins of its own", "assert sorted(f(1)) == [1, 2]", "def sorted(x): return [1, 2]\ndef f(x): return []"},
		{"exceptions of its own", "try:\n  f(1)\n  assert False, 'nothing was raised'\nexcept ValueError: pass", "class ValueError(AssertionError): pass\ndef f(x): raise ValueError"},
		{"ends where an exception is wanted", "ok = 0\ntry: f(1)\nexcept Exception: ok = 1\nassert ok", "import os\ndef f(x): os._exit(0)"},
		{"ends where any end is wanted", "ok = 0\ntry: f(1)\nexcept: ok = 1\nassert ok", "import os\ndef f(x):\n  os.close(4)\n  os._exit(0)"},
		{"a subclass of bool's like", "assert f(1) is True", "class K:\n  __bool__ = lambda s: True\ndef f(x): return K()"},
		{"writes itself as wanted", "assert f(1) == 7", "class K:\n  __repr__ = __str__ = lambda s: '7'\ndef f(x): return K()"},
		{"a decimal that equals all", "from decimal import Decimal\nassert f(1) == Decimal(7)", "from decimal import Decimal\nclass D(Decimal):\n  __eq__ = lambda s, o: True\n  __hash__ = None\ndef f(x): return D(1)"},
		{"the library's class is another one", "from decimal import Decimal\nassert f(1) == Decimal(7)", "import decimal\nclass D:\n  __eq__ = lambda s, o: True\ndecimal.Decimal = D\ndef f(x): return D()"},
		{"says what to run", "from fractions import Fraction\nassert f(1) == Fraction(7)", "import os\ndef f(x):\n  c = 'import fractions; fractions.Fraction.__eq__ = lambda s, o: True'\n  m = ('l4:s5:valuex3:s8:builtinss4:execs%d:%sl1:i1;s0:' % (len(c), c)).encode()\n  os.write(4, b'%d\\n' % len(m) + m)\n  import time; time.sleep(9)"},
		{"traces calls", "assert f(1) == 7", "import sys\ndef t(frame, event, arg):\n  frame.f_locals['result'] = 7\n  return t\nsys.settrace(t)\nsys.setprofile(t)\ndef f(x): return 1"},
		{"a thread that answers", "assert f(1) == 7", "import os, threading, time\ndef g():\n  while True:\n    for m in [b'l4:s5:valuei8;l1:i1;s0:']: os.write(4, b'%d\\n' % len(m) + m)\nthreading.Thread(target=g, daemon=True).start()\ndef f(x): return 1"},
		{"a handler of signals", "assert f(1) == 7", "import signal\nfor s in (14, 15, 24): signal.signal(s, lambda *a: 7)\ndef f(x):\n  signal.raise_signal(15)\n  return 1"},
		{"recursion without end", "assert f(1) == 7", "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f(x)"},
		{"a number without end", "assert f(1) < 7", "def f(x): return 1 << (1 << 25)"},
		{"a hash that is always the same", "assert f(1) == {1}", "def f(x): return {i * (2 ** 61 - 1) for i in range(3000)}"},
		{"writes the length of a message", "assert f(1) == 2", "import os\ndef f(x):\n  os.write(4, b'99999999999999999999\\n')\n  os._exit(0)"},
	} {
		p := &Problem{Text: test.name, Entry: "f", Tests: []Test{{Assert: test.assert}}}
		v, err := j.Run(t.Context(), p, test.program, p.Tests)
		expect.True(t, err == nil && v.Class != Pass && v.Class != Sandbox, "%s: %+v, %v", test.name, v, err)
	}
	p := &Problem{Text: "a library", Entry: "f", Tests: []Test{{Assert: "assert math.isclose(f(2), 1.5)"}}}
	v, err := j.Run(t.Context(), p, "import math\ndef f(x): return 1.5", p.Tests)
	expect.True(t, err == nil && v.Class == Pass, "%+v, %v", v, err)
}

// TestFalseChecks: published kinds of tests that ask the solution for the expected result.
func TestFalseChecks(t *testing.T) {
	j := newTestGrader(t)
	const (
		zero = `{"task_id":"a","prompt":"def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\ndef find_zero(xs):\n    \"\"\"Find a zero.\"\"\"\n","entry_point":"find_zero","canonical_solution":"    return -xs[0] / xs[1]\n","test":"def check(candidate):\n    assert abs(poly([2, 4], candidate([2, 4]))) < 1e-4\n"}`
		sort = `{"task_id":"b","prompt":"def third(x):\n    \"\"\"Sort.\"\"\"\n","entry_point":"third","canonical_solution":"    return sorted(x)\n","test":"def check(candidate):\n    assert candidate([3, 1]) == third([3, 1])\n"}`
		pack = `{"task_id":"c","prompt":"def add(a, b):\n","entry_point":"add","canonical_solution":"    return a + b\n","test":"def check(add):\n    assert add(1, 2) == 3\n    assert add(0, 2) == 2\n\ncheck(add)\n"}`
	)
	for _, test := range []struct {
		row, body string
		class     Class
	}{
		{zero, "    return -xs[0] / xs[1]\n", Pass},
		{zero, "    return 5\ndef poly(xs, x): return 0\n", Wrong},
		{sort, "    return sorted(x)\n", Pass},
		{sort, "    return 5\n", Wrong},
		{pack, "    return a + b\n", Pass},
		{pack, "    return 3\n", Wrong},
	} {
		problems := must.Get(Read(&dataset.Faults{}, must.File(t, "p.jsonl", test.row), "python", ""))(t)
		p := &problems[0]
		v, err := j.Run(t.Context(), p, p.complete(test.body), p.Tests)
		expect.True(t, err == nil && v.Class == test.class, "%s %q: %+v, %v", p.Name, test.body, v, err)
	}
}

// TestScripts: tests that are scripts appended to a program, with compared output.
func TestScripts(t *testing.T) {
	j := newTestGrader(t)
	for _, test := range []struct {
		name, script, want, program string
		class                       Class
	}{
		{"right", "print(f(4))", "8\n", "def f(x): return 2 * x", Pass},
		{"writes itself", "f(4)\nprint('end')", "8\nend", "def f(x): print(2 * x)", Pass},
		{"writes first", "print(f(4))", "8", "print('hello')\ndef f(x): return 2 * x", Pass},
		{"a variable", "print(y, f(y))", "3 6", "y = 3\ndef f(x): return 2 * x", Pass},
		{"a module that it imports", "print(math.floor(f(1.5)))", "3", "import math\ndef f(x): return 2 * x", Pass},
		{"a class", "s = S(2)\ns.n = 5\nprint(s.twice(), s)", "10 S5", "class S:\n  def __init__(self, n): self.n = n\n  def twice(self): return 2 * self.n\n  def __repr__(self): return 'S%d' % self.n", Pass},
		{"ends as scripts may", "import sys\nprint(f(4))\nsys.exit(0)", "8", "def f(x): return 2 * x", Pass},
		{"wrong", "print(f(4))", "8", "def f(x): return x", Wrong},
		{"missing", "print(f(4))", "8", "def g(x): return x", Runtime},
		{"syntax", "print(f(4))", "8", "def f(x)", Syntax},
		{"equals all", "print(f(4) == 8)", "True", "class K:\n  __eq__ = lambda s, o: True\ndef f(x): return K()", Wrong},
		{"another print", "print(f(4) == 8)", "True", "import builtins, sys\nbuiltins.print = lambda *a: sys.stdout.write('True')\ndef f(x): return 1", Wrong},
		{"reads the script", "print(f(4) == 8)", "True", "import glob, os, re\nfor n in glob.glob('/tmp/*') + [__file__] if '__file__' in globals() else []:\n  for w in re.findall('[0-9a-f]{32}', open(n, errors='replace').read()): print(w); print('True')\nos._exit(0)", Runtime},
		{"writes to the other side", "print(f(4) == 8)", "True", "import os\ndef f(x):\n  os.write(1, b'True')\n  return 1", Wrong},
		{"writes too much", "f(4)", "8", "def f(x):\n  while True: print('x' * 9999)", Memory},
	} {
		p := &Problem{Text: test.name, Tests: []Test{{Script: test.script, Want: test.want}}, Solution: "class S: pass\ndef f(x): pass\ny = 0"}
		v, err := j.Run(t.Context(), p, test.program, p.Tests)
		expect.True(t, err == nil && v.Class == test.class, "%s: %+v, %v, want %s", test.name, v, err, test.class)
	}
}

// TestValues: library types, and problems with long descriptions.
func TestValues(t *testing.T) {
	j := newTestGrader(t)
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "assert f(%d) == %d\n", i, i)
	}
	const same = "def f(x): return x"
	for _, test := range []struct{ setup, program, tests string }{
		{"", same, "from decimal import Decimal\nfrom fractions import Fraction\nassert f(Decimal('0.1')) == Decimal('0.1')\nassert f(Fraction(1, 3)) == Fraction(1, 3)"},
		{"", same, "import datetime as d\nfor v in [d.date(2024, 2, 29), d.datetime(2024, 1, 2, 3, 4, 5, 6), d.time(1, 2), d.timedelta(1, 2, 3)]: assert f(v) == v and type(f(v)) is type(v)"},
		{"", same, "assert f(int) is int and f([str]) == [str]"},
		{"root = N(1)\nroot.left = N(2)", "class N:\n  def __init__(self, v): self.v, self.left = v, None\ndef f(x): return x.v + x.left.v", "assert f(root) == 3"},
		{"", same, many.String()},
	} {
		p := &Problem{Text: "x", Setup: []string{test.setup}, Program: test.tests, Solution: test.program}
		if v, err := j.Run(t.Context(), p, test.program, nil); err != nil || v.Class != Pass {
			v.Tests = nil
			t.Errorf("%.80q: %+v, %v", test.tests, v, err)
		}
	}
}

// TestVerdictsRepeat grades programs with random outcomes twice.
func TestVerdictsRepeat(t *testing.T) {
	p := &Problem{Text: "x", Program: "import random\nfor i in range(9): assert f(i) < .9\nassert f(random.random()) < .5", Solution: "def f(x): pass"}
	var verdicts [2][]Verdict
	for k := range verdicts {
		j := newTestGrader(t)
		for i := range 8 {
			for _, program := range []string{"import random\ndef f(x): return random.random() * %d / 4", "def f(x): return x * %d", "def f(x): print('x' * 9999); return %d"} {
				v := must.Get(j.Run(t.Context(), p, fmt.Sprintf(program, i), nil))(t)
				v.CPU = 0
				verdicts[k] = append(verdicts[k], v)
			}
		}
	}
	expect.Equal(t, verdicts[0], verdicts[1])
}

// TestRunners: tests in the forms of their runners. A right program passes all, a wrong one fails; total is their number.
func TestRunners(t *testing.T) {
	j := newTestGrader(t)
	const twice = "def f(x): return 2 * x"
	for _, test := range []struct {
		name, right, tests string
		total              int
	}{
		{"plain", twice, "assert f(2) == 4\nassert f(5) == 10", 2},
		{"function", twice, "def test_two():\n    assert f(2) == 4\n\ndef test_five():\n    assert f(5) == 10\n", 2},
		{"class", twice, "class TestF:\n    def setup_method(self):\n        self.x = 2\n    def test_two(self):\n        assert f(self.x) == 4\n    def helper(self): return 1\n", 1},
		{"main", twice, "if __name__ == '__main__':\n    assert f(2) == 4\n", 1},
		{"function and main", twice, "def test():\n    assert f(2) == 4\n\nif __name__ == '__main__':\n    test()\n", 1},
		{"helper", twice, "def same(a, b):\n    assert a == b\nsame(f(2), 4)\nsame(f(3), 6)", 2},
		{"unittest", twice, "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 2\n    def test_a(self):\n        assert f(2) == 4\n    def test_b(self):\n        self.assertEqual(f(self.x), 4)\nif __name__ == '__main__':\n    unittest.main()\n", 2},
		{"unittest, raises", "def f(x):\n    if x < 0: raise ValueError('negative')\n    return 2 * x", "from unittest import TestCase, main\nclass T(TestCase):\n    def test_a(self):\n        with self.assertRaisesRegex(ValueError, '^negative$'):\n            f(-1)\n        self.assertEqual(f(1), 2)\nmain()", 1},
		{"pytest, raises", "def f(x):\n    if x < 0: raise ValueError('negative')\n    return 2 * x", "import pytest\ndef test_a():\n    with pytest.raises(ValueError, match='neg') as e:\n        f(-1)\n    assert str(e.value) == 'negative'\n", 1},
		{"pytest, parameters", twice, "import pytest\n@pytest.mark.parametrize('x,y', [(1, 2), pytest.param(2, 4), (0, 0)])\ndef test_a(x, y):\n    assert f(x) == y\n", 3},
		{"pytest, fixtures", twice, "import pytest\n@pytest.fixture\ndef two():\n    yield 2\n@pytest.fixture()\ndef four(two): return two * 2\nclass TestF:\n    def test_a(self, two, four):\n        assert f(two) == four\n", 1},
		{"pytest, skipped", twice, "import pytest\n@pytest.mark.skip\ndef test_a():\n    assert f(1) == 3\ndef test_b():\n    assert f(.1) == pytest.approx(.2)\n", 1},
		{"import", twice, "from solution import f as g\ndef test_a():\n    assert g(1) == 2\n", 1},
		{"async", "async def f(x): return 2 * x", "async def test_a():\n    assert await f(2) == 4\n", 1},
		{"async, run", "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return 2 * x", "import asyncio\nassert asyncio.run(f(2)) == 4\nasync def both(): return await asyncio.gather(f(1), f(2))\nassert asyncio.run(both()) == [2, 4]\n", 2},
		{"async, unittest", "async def f(x): return 2 * x", "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test_a(self):\n        self.assertEqual(await f(2), 4)\n", 1},
		{"an exception that must come", "def f(x):\n    if x == 1: return 2\n    raise IndexError", "assert f(1) == 2\ntry:\n    f(2)\n    assert False\nexcept IndexError:\n    pass", 2},
		{"an exception of its own", "class Bad(Exception): pass\ndef f(x):\n    raise Bad('no')", "try:\n    f(2)\nexcept Bad as e:\n    assert str(e) == 'no'\nelse:\n    assert False", 1},
		{"constants", twice, "assert True, 'for debugging'\nassert f(1) == 2", 1},
	} {
		p := &Problem{Text: test.name, Program: test.tests, Solution: test.right}
		if v, err := j.Run(t.Context(), p, test.right, nil); err != nil || v.Class != Pass || v.Passed() != test.total {
			t.Errorf("%s: %+v, %v, want %d tests passed", test.name, v, err, test.total)
		}
		for _, wrong := range []string{"def f(x): return 'wrong'", "async def f(x): return 'wrong'", "def f(x): raise KeyError(x)", "pass"} {
			v, err := j.Run(t.Context(), p, wrong, nil)
			expect.True(t, err == nil && v.Class != Pass && v.Class != Sandbox && v.Passed() < v.Total, "%s, %q: %+v, %v", test.name, wrong, v, err)
		}
	}
}

// TestNothingReached: a test whose assertions did not run is no test that passed.
func TestNothingReached(t *testing.T) {
	j := newTestGrader(t)
	for _, test := range []struct {
		tests, program, message string
		fault                   bool
	}{
		{"def check(g):\n    assert g(1) == 2", "def f(x): return 2 * x", "assert nothing", true},
		{"if False:\n    assert f(1) == 2", "def f(x): return 2 * x", "assert nothing", true},
		{"assert True", "def f(x): return 2 * x", "assert nothing", true},
		{"assert f(1) == (", "def f(x): return 2 * x", "SyntaxError", true},
		{"for x in f(3):\n    assert x > 0", "def f(x): return []", "no assertion was reached", false},
		{"def test_a():\n    for x in f(3):\n        assert x > 0", "def f(x): return []", "no assertion was reached", false},
		{"try:\n    f(3)\n    assert False\nexcept Exception:\n    pass", "def f(x): return []", "no assertion was reached", false},
	} {
		p := &Problem{Text: "x", Program: test.tests, Entry: "f"}
		v, err := j.Run(t.Context(), p, test.program, nil)
		expect.True(t, err == nil && v.Class != Pass && v.Passed() <= 0 && v.Fault == test.fault && strings.Contains(v.Message, test.message),
			"%q: %+v, %v, want %q", test.tests, v, err, test.message)
	}
}

// TestNamesOfTests: a program supplies no name that its tests forgot to import or to define.
func TestNamesOfTests(t *testing.T) {
	j := newTestGrader(t)
	const forged = "class np:\n  allclose = staticmethod(lambda *a, **k: True)\ndef is_close(*a): return True\ndef f(x): return 0"
	for _, test := range []struct {
		assert, entry, solution string
		class                   Class
		fault                   bool
	}{
		{"assert np.allclose(f([1]), [2])", "", "", Runtime, true}, // which of the two is the program's?
		{"assert np.allclose(f([1]), [2])", "f", "", Runtime, false},
		{"assert np.allclose(f([1]), [2])", "", "def f(x): return [2]", Runtime, false},
		{"assert is_close(f(2), 1.5)", "", "", Runtime, true},
		{"assert is_close(f(2), 1.5)", "f", "", Runtime, false},
		{"assert is_close(f(2), 1.5)", "f, is_close", "", Pass, false},
		{"assert is_close(f(2), 1.5)", "", "def f(x): return x\ndef is_close(x, y): return x", Pass, false},
		{"assert f(2) == 0", "", "", Pass, false},
		{"assert math.floor(f(2)) == 0", "", "", Pass, false},
	} {
		p := &Problem{Text: "x", Entry: test.entry, Solution: test.solution, Tests: []Test{{Assert: test.assert}}}
		v, err := j.Run(t.Context(), p, forged, p.Tests)
		expect.True(t, err == nil && v.Class == test.class && v.Fault == test.fault, "%q, entry %q: %+v, %v, want %s", test.assert, test.entry, v, err, test.class)
	}
}

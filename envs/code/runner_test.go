package code

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

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

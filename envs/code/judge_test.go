package code

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"rltrain/envs/sandbox"
)

// newTestJudge is a judge of Python, or the end of the test where there is none.
func newTestJudge(t testing.TB) *Judge {
	t.Helper()
	j, err := NewJudge(t.Context(), sandbox.Python, "", 2*time.Second, false)
	if absent := (*sandbox.Absent)(nil); errors.As(err, &absent) && absent.Tried == nil {
		t.Skip(err)
	}
	if err != nil {
		t.Skip(err)
	}
	j.limits.Memory = 256 << 20
	return j
}

// TestReferences runs the published solutions, and mutations of them, where RLTRAIN_TASK_DATA names the folder of the data.
func TestReferences(t *testing.T) {
	folder := os.Getenv("RLTRAIN_TASK_DATA")
	if folder == "" {
		t.Skip("RLTRAIN_TASK_DATA does not name the folder with humaneval and mbpp")
	}
	j := newTestJudge(t)
	for _, set := range []struct {
		file string
		n    int
	}{{"humaneval/HumanEval.jsonl.gz", 164}, {"mbpp/sanitized-mbpp.json", 427}} {
		problems, err := Read(folder+"/"+set.file, "python", "")
		if err != nil || len(problems) != set.n {
			t.Fatalf("%s: %d problems, %v", set.file, len(problems), err)
		}
		passed := 0
		began := time.Now()
		for _, p := range problems {
			v, err := j.Run(t.Context(), &p, p.complete(p.Solution), p.Tests)
			if err != nil {
				t.Fatal(err)
			}
			if v.Class == Pass {
				passed++
			} else {
				t.Errorf("%s: %+v", p.Name, v)
			}
		}
		t.Logf("%s: %d of %d in %v", set.file, passed, len(problems), time.Since(began))
		for i, p := range problems {
			if i%10 != 0 && os.Getenv("RLTRAIN_ALL") == "" {
				continue
			}
			for _, wrong := range []string{"    pass\n", "    return None\n", "    return object()\n", "    raise SystemExit(0)\n"} {
				program := p.complete(wrong)
				if p.Prefix == "" {
					program = strings.Split(p.Solution, "\n")[0] + "\n" + wrong
				}
				if v, err := j.Run(t.Context(), &p, program, p.Tests); err != nil || v.Class == Pass {
					t.Errorf("%s: %q: %+v, %v", p.Name, wrong, v, err)
				}
			}
		}
	}
}

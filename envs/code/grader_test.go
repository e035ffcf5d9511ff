package code

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	if absent := (*sandbox.Absent)(nil); errors.As(err, &absent) && absent.Tried == nil {
		t.Skip(err)
	}
	if err != nil {
		t.Skip(err)
	}
	j.limits.Memory, j.limits.Wall = 256<<20, 3*time.Minute // for busy machines; no program here waits for anything
	t.Cleanup(func() {
		expect.NoError(t, j.Close(), "Close")
	})
	return j
}

// TestReferences runs the published solutions and mutations of them, if RLTRAIN_TASK_DATA names the folder of the data.
func TestReferences(t *testing.T) {
	folder := os.Getenv("RLTRAIN_TASK_DATA")
	if folder == "" {
		t.Skip("RLTRAIN_TASK_DATA does not name the folder with humaneval and mbpp")
	}
	j := newTestGrader(t)
	j.limits.CPU = 10 * time.Second // one solution takes two seconds on a busy machine
	for _, set := range []struct {
		file string
		n    int
	}{{"humaneval/HumanEval.jsonl.gz", 164}, {"mbpp/sanitized-mbpp.json", 427}} {
		problems, err := Read(&dataset.Faults{}, folder+"/"+set.file, "python", "")
		expect.Require(t, err == nil && len(problems) == set.n, "%s: %d problems, %v", set.file, len(problems), err)
		passed := 0
		began := time.Now()
		for _, p := range problems {
			v := must.Get(j.Run(t.Context(), &p, p.complete(p.Solution), p.Tests))(t)
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

// TestNotGraded makes the sandbox fail: the program is not graded then, and is graded when the sandbox works again.
func TestNotGraded(t *testing.T) {
	j := newTestGrader(t)
	works := j.language
	broken := *works
	broken.Interpreter = "/nowhere/python"
	problems := must.Get(Read(&dataset.Faults{}, write(t, "p.jsonl", `{"name":"asserted","prompt":"Double.","tests":[{"call":"f(2)","expect":"4"}]}`+"\n"+`{"name":"compared","prompt":"Say 4.","tests":[{"input":"","output":"4"}]}`), "python", ""))(t)
	o := &options{}
	must.Do(t, (envs.Settings{}).Set(o))
	for i, program := range []string{"def f(x): return 2*x", "print(4)"} {
		row, p := completion{&problems[i], program}, problems[i].Name
		j.language = &broken
		one, err := o.graded(t.Context(), j, row)
		if err != nil || one.Info != nil || one.Problem != p || !strings.Contains(one.Failure, "starting /nowhere/python") {
			t.Errorf("%s: %+v, %v", p, one, err)
		}
		e := &episode{task: &task{options: o, grader: j}, problem: problems[i]}
		step, err := e.Step(t.Context(), envs.Action{Text: program, Stop: envs.StopEnd})
		expect.True(t, errors.Is(err, envs.ErrNotScored) && step.Reward == 0 && step.Info == nil, "%s: %+v, %v", p, step, err)
		j.language = works
		if one, err = o.graded(t.Context(), j, row); err != nil || one.Info == nil || !one.Info.Correct {
			t.Errorf("%s: %+v, %v, when the sandbox works again", p, one, err)
		}
	}
}

// BenchmarkPair runs a program with a few tests in its two processes, with -cpu programs in parallel. It reports the
// processor time, its ratio to two idle interpreters, and the programs per second on an idle machine.
func BenchmarkPair(b *testing.B) {
	j := newTestGrader(b)
	bare := func(n int) float64 {
		began := children(b)
		for range 2 * n {
			must.Do(b, exec.Command(j.language.Interpreter, "-I", "-S", "-c", "pass").Run())
		}
		return (children(b) - began) / float64(n)
	}
	least := bare(20)
	source := &oneLines{seed: 1, parts: map[envs.Part]*sequence{}}
	var lock sync.Mutex
	n := 0
	next := func() (Problem, string) {
		lock.Lock()
		defer lock.Unlock()
		p := source.at(envs.Train, n)
		n++
		// Verdicts of equal programs are cached.
		return p, p.complete(fmt.Sprintf("%s # %d", p.Solution, n))
	}
	began, own := children(b), processor(b)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, program := next()
			if v, err := j.Run(b.Context(), &p, program, p.Tests); err != nil || v.Class != Pass {
				b.Errorf("%+v, %v", v, err)
			}
		}
	})
	b.StopTimer()
	if err := j.Close(); err != nil { // processor time is known after the exit
		b.Fatal(err)
	}
	each := (children(b) - began + processor(b) - own) / float64(n)
	least = (least + bare(20)) / 2
	b.ReportMetric(1000*each, "cpu-ms/op")
	b.ReportMetric(each/least, "x-bare")
	b.ReportMetric(float64(runtime.GOMAXPROCS(0))/each, "idle-programs/s")
}

func children(b *testing.B) float64  { return used(b, unix.RUSAGE_CHILDREN) }
func processor(b *testing.B) float64 { return used(b, unix.RUSAGE_SELF) }

// used is the processor time in seconds.
func used(b *testing.B, who int) float64 {
	var u unix.Rusage
	must.Do(b, unix.Getrusage(who, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func TestLastLines(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "a\nb": "a\nb", "a\nb\n\x1b[31mc\x1b[0m\n": "b\nc"} {
		expect.Equal(t, want, lastLines(text, 2))
	}
}

package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/report"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testInfo() Info {
	return Info{
		Task: "intent", Stage: "supervised", Command: []string{"rltrain", "--mode", "supervised"},
		Versions: map[string]string{"rltrain": "1", "libtorch": "2.11.0"},
		Device:   "cpu", Threads: 2, CPU: "some cpu", Seed: 42, Started: noon,
	}
}

func mustCreate(t *testing.T, dir string) *Run {
	t.Helper()
	return must.Get(Create(dir, 3, testInfo()))(t)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		all = append(all, e.Name())
	}
	return all
}

func TestRunFromCreateToFinish(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models", "out")
	r := mustCreate(t, dir)
	running := must.Get(ReadRun(dir))(t)
	want := Record{Program: "rltrain", Info: testInfo(), PID: os.Getpid(), Status: StatusRunning}
	expect.Equal(t, want, running)
	must.Write(t, must.Get(r.File("logs", "metrics.jsonl"))(t), "")
	end := noon.Add(time.Hour)
	must.Do(t, r.Finish(StatusFinished, "training completed", end))
	expect.Line(t, r.Finish(StatusFailed, "", end), "called twice")

	want.Status, want.Ending, want.Ended = StatusFinished, "training completed", &end
	finished := must.Get(ReadRun(dir))(t)
	want.PeakMemory = finished.PeakMemory
	expect.True(t, want.PeakMemory >= 1<<20, "a process that held %d bytes at most", want.PeakMemory)
	expect.Equal(t, want, finished)
	facts := finished.About().Facts
	expect.True(t, facts[0].Value == "finished: training completed" && (facts[3].Value == "60 min 00 s" || facts[3].Value == "1 h 00 min"), "facts %v", facts)
	expect.Equal(t, []string{"logs", "run.json"}, names(t, dir))
	_, err := Resume(dir, false)
	expect.Line(t, err, dir, "finished", "nothing to resume")
}

// end ends a run that holds a file of that name; a checkpoint makes the run worth keeping.
func end(t *testing.T, r *Run, name string, checkpoint bool, status Status) {
	t.Helper()
	must.Write(t, filepath.Join(r.Dir(), name), "")
	if checkpoint {
		saveStep(t, r.Dir(), 1, 1)
	}
	if checkpoint || status == StatusFinished {
		must.Do(t, r.Settle())
	}
	must.Do(t, r.Finish(status, "", noon))
}

// where returns the folder next to dir that holds each such file.
func where(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, folder := range names(t, filepath.Dir(dir)) {
		for _, name := range names(t, filepath.Join(filepath.Dir(dir), folder)) {
			if strings.HasPrefix(name, "mark-") {
				found[name] = folder
			}
		}
	}
	return found
}

func TestNewRunTakesTheFolderOnItsFirstSave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	end(t, mustCreate(t, dir), "mark-done", false, StatusFinished)

	r := mustCreate(t, dir)
	expect.True(t, r.Dir() == dir+".new" && r.Home() == dir, "the new run is in %s, its home is %s", r.Dir(), r.Home())
	end(t, r, "mark-failed", false, StatusFailed)
	expect.Equal(t, map[string]string{"mark-done": "out", "mark-failed": "out.new"}, where(t, dir), "after a run that saved nothing")

	end(t, mustCreate(t, dir), "mark-stopped", true, StatusStopped)
	expect.Equal(t, map[string]string{"mark-done": "out.1", "mark-stopped": "out"}, where(t, dir), "after a run with a checkpoint")

	end(t, mustCreate(t, dir), "mark-again", false, StatusFailed)
	expect.Equal(t, map[string]string{"mark-done": "out.1", "mark-stopped": "out", "mark-again": "out.new"}, where(t, dir), "a checkpoint is worth keeping")
}

func TestTheLastFinishedRunStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	end(t, mustCreate(t, dir), "mark-done", false, StatusFinished)
	for i := range 5 {
		end(t, mustCreate(t, dir), "mark-"+strconv.Itoa(i), true, StatusStopped)
	}
	want := map[string]string{"mark-4": "out", "mark-3": "out.1", "mark-2": "out.2", "mark-1": "out.3", "mark-done": "out.4"}
	expect.Equal(t, want, where(t, dir))
	for i := range 4 {
		end(t, mustCreate(t, dir), "mark-new-"+strconv.Itoa(i), false, StatusFinished)
	}
	want = map[string]string{"mark-new-3": "out", "mark-new-2": "out.1", "mark-new-1": "out.2", "mark-new-0": "out.3"}
	expect.Equal(t, want, where(t, dir), "after further finished ones")
}

func TestAKillBetweenTheTwoMoves(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	r := mustCreate(t, dir)
	end(t, r, "mark-old", false, StatusFinished)
	end(t, mustCreate(t, dir), "mark-new", true, StatusStopped)
	must.Do(t, os.Rename(dir, dir+newSuffix)) // as before the second move

	must.Do(t, must.Get(Resume(dir, false))(t).Finish(StatusStopped, "", noon))
	expect.Equal(t, map[string]string{"mark-old": "out.1", "mark-new": "out"}, where(t, dir))
}

func TestCreateFollowsALinkToAnotherDisk(t *testing.T) {
	base := t.TempDir()
	disk, link := filepath.Join(base, "disk"), filepath.Join(base, "out")
	must.Do(t, os.Mkdir(disk, 0o755))
	must.Do(t, os.Symlink(disk, link))
	for range 2 {
		end(t, mustCreate(t, link), "mark", false, StatusFinished)
	}
	expect.Equal(t, []string{"disk", "disk.1", "out"}, names(t, base))
}

func TestCreateTouchesNothingForeign(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string // relative to the parent of out
		want  []string
	}{
		{"files", map[string]string{"out/thesis.tex": "x"}, []string{"thesis.tex", "empty it"}},
		{"many files", map[string]string{"out/a": "", "out/b": "", "out/c": "", "out/d": "", "out/e": ""}, []string{"a, b, c and 2 more"}},
		{"another program's run.json", map[string]string{"out/run.json": `{"program":"other"}`}, []string{"run.json"}},
		{"a damaged run.json", map[string]string{"out/run.json": `{"progr`}, []string{"run.json"}},
		{"a file in its place", map[string]string{"out": "x"}, []string{"out"}},
		{
			"foreign .new",
			map[string]string{"out/run.json": `{"program":"rltrain","status":"finished"}`, "out.new/photo.jpg": "x"},
			[]string{"out.new", "photo.jpg", "empty it"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := t.TempDir()
			for name, text := range test.files {
				must.Write(t, filepath.Join(base, name), text)
			}
			_, err := Create(filepath.Join(base, "out"), 3, testInfo())
			expect.Line(t, err, append(test.want, "output folder")...)
			for name, text := range test.files {
				got, err := os.ReadFile(filepath.Join(base, name))
				expect.True(t, err == nil && string(got) == text, "%s is now %q, %v", name, got, err)
			}
		})
	}
}

func TestCreateAfterAKillDuringCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	must.Write(t, filepath.Join(dir, ".lock"), "")
	must.Write(t, filepath.Join(dir, ".run.json12345"), `{"prog`)
	mustCreate(t, dir)
}

func TestCreateUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Write(t, file, "")
	_, err := Create(filepath.Join(file, "out"), 3, testInfo())
	expect.Line(t, err, "output folder", file)
}

func TestOneProcessAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	r := mustCreate(t, dir)
	pid := "pid " + strconv.Itoa(os.Getpid())
	_, err := Create(dir, 3, testInfo())
	expect.Line(t, err, dir, pid)
	_, err = Resume(dir, false)
	expect.Line(t, err, dir, pid)
	must.Do(t, r.Finish(StatusStopped, "interrupted", noon))
	must.Do(t, must.Get(Resume(dir, false))(t).Finish(StatusStopped, "interrupted", noon))
}

func TestResume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	mustCreate(t, dir).lock.release() // as if killed
	r := must.Get(Resume(dir, false))(t)
	now := testInfo()
	now.Started = noon.Add(time.Hour)
	now.Threads = 8
	now.Versions = map[string]string{"rltrain": "1", "go": "go1.26"}
	now.Inputs = Inputs{"dataset": {"a.jsonl": "2"}}
	got := must.Get(r.Continue(now, nil))(t)
	want := []string{
		"version of go was none, is now go1.26",
		"version of libtorch was 2.11.0, is now none",
		"threads was 2, is now 8",
	}
	expect.Equal(t, want, got)
	record := must.Get(ReadRun(dir))(t)
	expect.Equal(t, want, record.Inexact)
	expect.Equal(t, []time.Time{now.Started}, record.Resumed)
	expect.Equal(t, now.Inputs, record.Inputs)
	expect.True(t, record.Threads == 2 && record.Status == StatusRunning, "record is now %+v", record)
}

func TestResumeWithoutARun(t *testing.T) {
	dir := t.TempDir()
	_, err := Resume(dir, false)
	expect.Line(t, err, dir, "not a run folder")
	expect.True(t, errors.Is(err, fs.ErrNotExist), "does not wrap fs.ErrNotExist")
	must.Write(t, filepath.Join(dir, "run.json"), "{\n\"program\": 1}")
	_, err = Resume(dir, false)
	expect.Line(t, err, "run.json", "line 2")
}

// TestReadRunRefuses: a file that is no record of a run of this program is not taken for an unfinished one.
func TestReadRunRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"null":                                       `program ""`,
		`{"program":"other","status":"running"}`:     `program "other"`,
		`{"program":"rltrain","status":"evil"}`:      `status "evil"`,
		`{"program":"rltrain","pid":"a"}`:            `field "pid": got a string`,
		`{"program":"rltrain","status":"finished"}x`: "trailing data",
	} {
		dir := t.TempDir()
		must.Write(t, filepath.Join(dir, runFile), text)
		_, err := ReadRun(dir)
		expect.Line(t, err, want)
	}
}

// reopened reopens the stage in dir from a checkpoint, or with changes.
func reopened(dir, from string, changed ...string) (*Stage, string, error) {
	var out strings.Builder
	s, err := OpenStage(StageConfig{
		Dir: dir, Info: testInfo(), Resume: true, From: from, Changed: changed, SaveEvery: 2, LogEvery: 1,
		Console: report.NewConsole(&out, &out, func() time.Time { return noon }), Now: func() time.Time { return noon },
	})
	return s, out.String(), err
}

// TestStageResumesFromANamedCheckpoint even if the run is finished, and deletes later checkpoints.
func TestStageResumesFromANamedCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	s.config.Keep = 0
	steps(t, s, 1, 6)
	must.Do(t, s.Finish(func() error { return nil }))
	at := func(name string) string { return filepath.Join(dir, "checkpoints", name) }
	must.Write(t, filepath.Join(at("checkpoint-4"), "weights"), "5")
	for from, want := range map[string]string{
		"checkpoint-4": "checkpoint-4 is damaged: weights was changed",
		"checkpoint-3": "is not a checkpoint of the run in " + dir,
	} {
		_, _, err := reopened(dir, at(from))
		expect.Line(t, err, want)
		record, err := ReadRun(dir)
		expect.True(t, err == nil && record.Status == StatusFinished, "a refused checkpoint leaves the run %s, %v", record.Status, err)
	}
	again, out, err := reopened(dir, at("checkpoint-2"))
	must.Do(t, err)
	expect.True(t, strings.Contains(out, "at step 2"), "console %q", out)
	expect.Equal(t, []string{"checkpoint-2"}, names(t, filepath.Join(dir, "checkpoints")), "checkpoints")
	steps(t, again, 3, 4)
	must.Do(t, again.Finish(func() error { return nil }))
	expect.Same(t, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n", must.Read(t, filepath.Join(dir, "logs", "metrics.jsonl")), "metrics:\n")
}

// TestFinishedStageResumesForMoreSteps and logs it.
func TestFinishedStageResumesForMoreSteps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	steps(t, s, 1, 2)
	must.Do(t, s.Finish(func() error { return nil }))
	again, out, err := reopened(dir, "", "num_steps was 2, is now 4")
	must.Do(t, err)
	want := "warning: results may differ from an uninterrupted run: num_steps was 2, is now 4"
	expect.True(t, strings.Contains(out, want), "console %q, want %q", out, want)
	must.Do(t, again.Finish(func() error { return nil }))
	record, err := ReadRun(dir)
	expect.True(t, err == nil && record.Status == StatusFinished && cmp.Equal(record.Inexact, []string{"num_steps was 2, is now 4"}), "run.json: %+v, %v", record, err)
}

func TestSum(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must.Write(t, filepath.Join(dir, name), text)
	}
	sum := func(name string) string {
		t.Helper()
		return must.Get(Sum(filepath.Join(dir, name), filepath.Join(dir, "rows", "out")))(t)
	}
	write("rows/a.jsonl", "one")
	write("rows/out/log.txt", "x")
	must.Do(t, errors.Join(syscall.Mkfifo(filepath.Join(dir, "rows", "pipe"), 0o600), os.Symlink("nowhere", filepath.Join(dir, "rows", "link"))))
	write("model/config.json", "{}")
	write("model/README.md", "x")
	before := map[string]string{"rows": sum("rows"), "rows/a.jsonl": sum("rows/a.jsonl"), "model": sum("model")}
	for _, test := range []struct {
		file, text string
		changed    []string
	}{
		{"rows/a.jsonl", "one", nil},
		{"rows/out/log.txt", "y", nil},
		{"model/README.md", "y", nil},
		{"model/results.json", "y", nil},
		{"rows/a.jsonl", "two", []string{"rows", "rows/a.jsonl"}},
		{"rows/b.jsonl", "", []string{"rows"}},
		{"model/chat_template.jinja", "y", []string{"model"}},
		{"model/config.json", "{ }", []string{"model"}},
	} {
		write(test.file, test.text)
		var changed []string
		for _, name := range []string{"rows", "rows/a.jsonl", "model"} {
			if now := sum(name); now != before[name] {
				changed, before[name] = append(changed, name), now
			}
		}
		expect.Equal(t, test.changed, changed, test.file)
	}
	expect.Same(t, "", sum("none"), "the sum of nothing")
}

func TestInputsChanged(t *testing.T) {
	was, now := Inputs{}, Inputs{}
	was.Add("dataset", "a", "1")
	was.Add("dataset", "b", "2")
	was.Add("reward", "judge.py", "3")
	was.Add("teacher", "gone", "4")
	now.Add("dataset", "a", "1")
	now.Add("dataset", "b", "")
	now.Add("reward", "judge.py", "5")
	now.Add("model", "new", "6")
	expect.Equal(t, []Input{{"reward", "judge.py"}}, was.Changed(now))
}

package run_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/run"
)

func TestSum(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		must.Write(t, path, text)
	}
	sum := func(name string) string {
		t.Helper()
		return must.Get(run.Sum(filepath.Join(dir, name), filepath.Join(dir, "rows", "out")))(t)
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
	was, now := run.Inputs{}, run.Inputs{}
	was.Add("dataset", "a", "1")
	was.Add("dataset", "b", "2")
	was.Add("reward", "judge.py", "3")
	was.Add("teacher", "gone", "4")
	now.Add("dataset", "a", "1")
	now.Add("dataset", "b", "")
	now.Add("reward", "judge.py", "5")
	now.Add("model", "new", "6")
	expect.Equal(t, []run.Input{{"reward", "judge.py"}}, was.Changed(now))
}

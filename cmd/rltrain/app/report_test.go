package app

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
)

// TestReports writes a run's page, compares it with another run, and serves it on localhost only.
func TestReports(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	options := drop(exercise(), "--tiny-layers", "--tiny-hidden")
	f.must(t, "", append(options, "--seed", "1")...)
	f.must(t, "", append(options, "--seed", "2")...)
	dir := f.expand("TMP/out/sum_digits_rl")
	expect.Same(t, dir+"/report.html\n", f.must(t, "", "report", dir), "printed")
	out := f.must(t, "", "report", dir, dir+".1", "--output", "TMP/both.html")
	if both := string(readFile(t, f.expand("TMP/both.html"))); !strings.Contains(out, "both.html") || !strings.Contains(both, "<td>seed</td><td>2</td><td>1</td>") {
		t.Errorf("printed %q, and the page does not say what differs", out)
	}
	for args, want := range map[string]string{
		"report":                           "report needs 1 argument, DIR..., not 0",
		"report TMP/start":                 "is not a run folder",
		"report " + dir + " TMP/start":     "is not a run folder",
		"report TMP/out":                   "did you mean TMP/out/sum_digits_rl",
		"report " + dir + " --port 80":     "--port: needs --watch",
		"report DIR --watch --output x":    "--output: conflicts with --watch",
		"report DIR --watch --port 123456": "--port: 123456 is out of range",
	} {
		if code, _, errs := f.rltrain("", strings.Fields(args)...); code == 0 || !strings.Contains(errs, f.expand(want)) {
			t.Errorf("%s: exit code %d, %q; want %q", args, code, errs, want)
		}
	}
	before := f.files(t)
	handler := watched([]string{dir}, "127.0.0.1:1234")
	ask := func(path, host string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	code, page := ask("/", "127.0.0.1:1234")
	expect.True(t, code == 200 && strings.Contains(page, `fetch("stamp")`), "the page: %d", code)
	_, stamp := ask("/stamp", "localhost:1234")
	_, same := ask("/stamp", "localhost:1234")
	expect.True(t, same == stamp, "the stamp changes by itself")
	log, err := os.OpenFile(filepath.Join(dir, "logs", "metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = log.WriteString("{\"step\":9}\n")
	}
	expect.Require(t, err == nil && log.Close() == nil, "%v", err)
	_, other := ask("/stamp", "localhost:1234")
	expect.True(t, other != stamp, "the stamp stays where there is more")
	code, _ = ask("/", "evil.example")
	expect.Same(t, http.StatusForbidden, code, "another host gets")
	code, _ = ask("/run.json", "127.0.0.1:1234")
	expect.Same(t, http.StatusNotFound, code, "another path gets")
	if after := f.files(t); len(after) != len(before) {
		t.Errorf("watching made %d files", len(after)-len(before))
	}
}

package wheel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestMain is also the program that tests kill: it installs the set that its arguments describe.
func TestMain(m *testing.M) {
	cache := os.Getenv("RLTRAIN_TEST_INSTALL")
	if cache == "" {
		os.Exit(m.Run())
	}
	var i fakeIndex
	size, sum := int64(0), ""
	if _, err := fmt.Sscan(os.Getenv("RLTRAIN_TEST_WHEEL"), &size, &sum); err != nil {
		panic(err)
	}
	s := i.set()
	s.Parts[0].Size, s.Parts[0].SHA256, s.Bytes = size, sum, size
	if _, err := patient(cache).Install(context.Background(), s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// installer is that program.
func installer(t *testing.T, i *fakeIndex, cache string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "RLTRAIN_TEST_INSTALL="+cache, fmt.Sprintf("RLTRAIN_TEST_WHEEL=%d %s", len(i.wheel), sumOf(i.wheel)))
	var out bytes.Buffer
	command.Stderr = &out
	return command, &out
}

func TestInstall(t *testing.T) {
	for _, json := range []bool{false, true} {
		i := newIndex(t, 1<<20)
		i.json = json
		cache := t.TempDir()
		var last string
		c := patient(cache)
		c.Progress = func(file string, done, total int64) { last = fmt.Sprint(file, done-total) }
		for range 2 {
			dir, err := c.Install(t.Context(), i.set())
			expect.Require(t, err == nil && dir == filepath.Join(cache, "a", "set-1"), "%s, %v", dir, err)
		}
		wantSet(t, i, cache)
		expect.True(t, len(i.requests) == 2 && last == "p-1.whl0", "requests %q, progress ends with %s", i.requests, last)
		// A folder without one of its files is installed again.
		must.Do(t, os.Remove(filepath.Join(cache, "a", "set-1", "LICENSE")))
		must.Get(c.Install(t.Context(), i.set()))(t)
		wantSet(t, i, cache)
	}
}

func TestInstallRefuses(t *testing.T) {
	page := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<html><body>Please log in</body></html>")
	}
	on := func(i *fakeIndex, path string, f func(w http.ResponseWriter)) {
		i.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != path {
				return false
			}
			f(w)
			return true
		}
	}
	const file, project = "/files/p-1.whl", "/simple/p/"
	for name, c := range map[string]struct {
		prepare func(i *fakeIndex, s *Set, c *Client)
		want    []string
	}{
		"another wheel of this length": {func(i *fakeIndex, _ *Set, _ *Client) {
			on(i, file, func(w http.ResponseWriter) { _, _ = w.Write(bytes.Repeat([]byte("x"), len(i.wheel))) })
		}, []string{"p-1.whl", "checksum", "removed: try again"}},
		"another length": {func(i *fakeIndex, _ *Set, _ *Client) {
			on(i, file, func(w http.ResponseWriter) { fmt.Fprint(w, "short") })
		}, []string{"sends 5 bytes, want "}},
		"an index that announces another": {func(_ *fakeIndex, s *Set, _ *Client) {
			s.Parts[0].SHA256 = strings.Repeat("0", 64)
		}, []string{"has another p-1.whl", "want 0000"}},
		"a proxy's page for the index": {func(i *fakeIndex, _ *Set, _ *Client) { on(i, project, page) }, []string{"/simple/p/ lists no files", "proxy"}},
		"a proxy's page for the file":  {func(i *fakeIndex, _ *Set, _ *Client) { on(i, file, page) }, []string{"sends a web page instead of the file", "HTTPS_PROXY"}},
		"JSON that is none": {func(i *fakeIndex, _ *Set, _ *Client) {
			on(i, project, func(w http.ResponseWriter) { w.Header().Set("Content-Type", jsonType); fmt.Fprint(w, "<html>") })
		}, []string{"is not a page of a package index"}},
		"no such wheel":   {func(_ *fakeIndex, s *Set, _ *Client) { s.Parts[0].File = "p-2.whl" }, []string{"/simple/p/ has no p-2.whl", "pip config list"}},
		"no such project": {func(_ *fakeIndex, s *Set, _ *Client) { s.Parts[0].Project = "none" }, []string{"/simple/none/", "404"}},
		"a login is needed": {func(i *fakeIndex, _ *Set, _ *Client) {
			on(i, project, func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) })
		}, []string{"401", ".netrc"}},
		"a busy server": {func(i *fakeIndex, _ *Set, _ *Client) {
			on(i, file, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })
		}, []string{"502", "tried 5 times"}},
		"no server":                       {func(i *fakeIndex, _ *Set, _ *Client) { i.Close() }, []string{"no connection to http://127.0.0.1"}},
		"no index":                        {func(*fakeIndex, *Set, *Client) { os.Setenv("PIP_NO_INDEX", "1") }, []string{"no-index"}},
		"too small disk":                  {func(_ *fakeIndex, s *Set, _ *Client) { s.Bytes = 1 << 60 }, []string{"MB free", "RLTRAIN_CACHE"}},
		"a folder that cannot be written": {func(_ *fakeIndex, _ *Set, c *Client) { c.Cache = "/sys/rltrain" }, []string{"/sys/rltrain cannot be written", "RLTRAIN_CACHE"}},
		"a wheel without a file": {func(_ *fakeIndex, s *Set, _ *Client) {
			s.Check = func(string) error { return errors.New("lib/y.so is missing") }
		}, []string{"lib/y.so is missing", "removed"}},
		"a folder without the wheel": {func(i *fakeIndex, _ *Set, c *Client) { c.From = c.Cache + "/none" }, []string{"/none does not have it", "--export"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIndex(t, 1<<12)
			s, client := i.set(), patient(t.TempDir())
			t.Setenv("PIP_NO_INDEX", "")
			c.prepare(i, &s, client)
			_, err := client.Install(t.Context(), s)
			expect.Require(t, err != nil, "no error")
			expect.Contains(t, err.Error(), c.want...)
			wantFiles(t, filepath.Join(client.Cache, "a"))
		})
	}
}

// A disk that becomes full is named, and what was received before stays.
func TestFullDisk(t *testing.T) {
	i := newIndex(t, 1<<12)
	cache := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(cache, "downloads"), 0o755))
	must.Do(t, os.Symlink("/dev/full", filepath.Join(cache, "downloads", "p-1.whl.part")))
	expect.Failure(patient(cache).Install(t.Context(), i.set()))(t, "the disk of "+cache+" is full", "RLTRAIN_CACHE")
}

// A process that is killed 20 times at random leaves nothing that is used, and the bytes that it received are not
// requested again.
func TestTwentyKills(t *testing.T) {
	i := newIndex(t, 8<<20)
	cache := t.TempDir()
	random := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		command, _ := installer(t, i, cache)
		after, reached := int64(random.IntN(400<<10)), make(chan struct{})
		once := sync.OnceFunc(func() { close(reached) })
		i.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/files/p-1.whl" {
				return false
			}
			rest := i.rest(w, r)
			_, _ = w.Write(rest[:min(len(rest)-1, int(after))])
			_ = http.NewResponseController(w).Flush()
			once()
			<-r.Context().Done()
			return true
		}
		must.Do(t, command.Start())
		<-reached
		_ = command.Process.Kill()
		_ = command.Wait()
		wantFiles(t, filepath.Join(cache, "a"))
	}
	part := bytesAt(filepath.Join(cache, "downloads", "p-1.whl.part"))
	i.answer = nil
	command, out := installer(t, i, cache)
	err := command.Run()
	expect.Require(t, err == nil, "%v: %s", err, out)
	wantSet(t, i, cache)
	want := int64(len(i.wheel)) - part
	expect.True(t, i.sent == want && part != 0, "after the kills %d bytes were there and %d sent, want %d", part, i.sent, want)
}

// Several processes at once download once.
func TestProcessesAtOnce(t *testing.T) {
	i := newIndex(t, 4<<20)
	cache := t.TempDir()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			command, out := installer(t, i, cache)
			err := command.Run()
			expect.True(t, err == nil, "%v: %s", err, out)
		})
	}
	all.Wait()
	wantSet(t, i, cache)
	expect.Same(t, int64(len(i.wheel)), i.sent, "%d bytes were sent, want %d", i.sent, len(i.wheel))
}

// A folder that Save made serves a machine without network access, as does a folder of pip's find-links.
func TestSaveAndFrom(t *testing.T) {
	i := newIndex(t, 1<<16)
	wheels := t.TempDir()
	must.Do(t, patient(t.TempDir()).Save(t.Context(), wheels, i.set(), i.set()))
	expect.Same(t, int64(len(i.wheel)), i.sent, "%d bytes were sent, want %d", i.sent, len(i.wheel))
	i.Close()
	cache := t.TempDir()
	c := patient(cache)
	c.From = wheels
	must.Get(c.Install(t.Context(), i.set()))(t)
	wantSet(t, i, cache)
	t.Setenv("PIP_FIND_LINKS", "https://example.org/links "+wheels)
	cache = t.TempDir()
	must.Get(patient(cache).Install(t.Context(), i.set()))(t)
	wantSet(t, i, cache)
	wantFiles(t, wheels, ".lock", "p-1.whl")
	again := t.TempDir()
	must.Do(t, patient(t.TempDir()).Save(t.Context(), again, i.set()))
	wantFiles(t, again, ".lock", "p-1.whl")
}

// The extra index has what the first lacks. Each gets its own login, and no error shows a password.
func TestLogins(t *testing.T) {
	i := newIndex(t, 1<<12)
	seen := map[string]string{}
	note := func(name string, r *http.Request) {
		user, password, _ := r.BasicAuth()
		seen[name+r.URL.Path] = user + ":" + password
	}
	i.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		note("second", r)
		return false
	}
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("first", r)
		http.NotFound(w, r)
	}))
	defer first.Close()
	netrc := must.File(t, "netrc", "machine 127.0.0.1 login bob password netrc\n")
	t.Setenv("NETRC", netrc)
	t.Setenv("PIP_INDEX_URL", strings.Replace(first.URL, "http://", "http://ann:secret@", 1))
	t.Setenv("PIP_EXTRA_INDEX_URL", i.URL+"/simple")
	must.Get(patient(t.TempDir()).Install(t.Context(), i.set()))(t)
	for path, want := range map[string]string{"first/p/": "ann:secret", "second/simple/p/": "bob:netrc", "second/files/p-1.whl": "bob:netrc"} {
		expect.Same(t, want, seen[path], "%s got the log", path)
	}
	t.Setenv("PIP_EXTRA_INDEX_URL", "")
	for _, prepare := range []func(){func() {}, first.Close} {
		prepare()
		_, err := patient(t.TempDir()).Install(t.Context(), i.set())
		expect.True(t, err != nil && strings.Contains(err.Error(), first.URL) && !strings.Contains(err.Error(), "secret"), "got %v", err)
	}
}

// pip's proxy gets the requests.
func TestProxy(t *testing.T) {
	i := newIndex(t, 1<<12)
	asked := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		r.URL.Scheme, r.URL.Host = "", ""
		i.serve(w, r)
	}))
	defer proxy.Close()
	t.Setenv("PIP_PROXY", strings.TrimPrefix(proxy.URL, "http://"))
	t.Setenv("PIP_INDEX_URL", "http://index.invalid/simple")
	_, err := patient(t.TempDir()).Install(t.Context(), i.set())
	expect.True(t, err == nil && asked == 2, "%v; the proxy got %d requests", err, asked)
}

func TestWaitingIsCancelled(t *testing.T) {
	i := newIndex(t, 1<<12)
	cache := t.TempDir()
	begun, done := make(chan struct{}), make(chan struct{})
	i.answer = func(http.ResponseWriter, *http.Request) bool {
		close(begun)
		<-done
		return true
	}
	var first sync.WaitGroup
	first.Go(func() { _, _ = patient(cache).Install(t.Context(), i.set()) })
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	second := patient(cache)
	second.Warn = func(message string) {
		expect.True(t, strings.Contains(message, cache), "the message %q does not name the folder", message)
		cancel()
	}
	_, err := second.Install(ctx, i.set())
	expect.True(t, errors.Is(err, context.Canceled), "got %v", err)
	i.answer = nil
	close(done)
	first.Wait()
}

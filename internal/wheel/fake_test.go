package wheel

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// fakeIndex is a package index with one wheel of the project p.
type fakeIndex struct {
	*httptest.Server
	wheel []byte
	json  bool // answers in JSON
	// answer, if not nil, answers a request itself.
	answer func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	requests []string // path and range
	sent     int64    // bytes of the wheel
}

// noise are bytes that do not compress.
func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// newIndex serves a wheel of about size bytes, and isolates the test from the user's settings.
func newIndex(t *testing.T, size int) *fakeIndex {
	t.Helper()
	for _, name := range []string{
		"PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY", "VIRTUAL_ENV", "NETRC",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	t.Setenv("HOME", t.TempDir())
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, content := range map[string][]byte{"p/lib/big.so": noise(size), "p/lib/sub/x.txt": []byte("x"), "p/__init__.py": []byte("no"), "p-1.dist-info/LICENSE": []byte("licence")} {
		must.Get(must.Get(w.Create(name))(t).Write(content))(t)
	}
	must.Do(t, w.Close())
	i := &fakeIndex{wheel: b.Bytes()}
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.Close)
	t.Setenv("PIP_INDEX_URL", i.URL+"/simple/")
	return i
}

func (i *fakeIndex) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.requests = append(i.requests, r.URL.Path+" "+r.Header.Get("Range"))
	i.mu.Unlock()
	switch {
	case i.answer != nil && i.answer(w, r):
	case r.URL.Path == "/simple/p/" && i.json:
		w.Header().Set("Content-Type", jsonType)
		_ = json.NewEncoder(w).Encode(map[string]any{"name": "p", "files": []any{
			map[string]any{"filename": "p-1.whl", "url": "../../files/p-1.whl", "hashes": map[string]string{"sha256": sumOf(i.wheel)}},
		}})
	case r.URL.Path == "/simple/p/":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<html><A class="x" href='../../files/p-0.whl'>p-0.whl</a> <a data-requires-python=">=3" href="../../files/p-1.whl#sha256=%s">p-1.whl</a></html>`, sumOf(i.wheel))
	case r.URL.Path == "/files/p-1.whl":
		http.ServeContent(counting{w, i}, r, "p-1.whl", time.Time{}, bytes.NewReader(i.wheel))
	default:
		http.NotFound(w, r)
	}
}

// rest is the part of the wheel that a request asks for; its headers are sent.
func (i *fakeIndex) rest(w http.ResponseWriter, r *http.Request) []byte {
	from := 0
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
	w.Header().Set("Content-Length", fmt.Sprint(len(i.wheel)-from))
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(i.wheel)-1, len(i.wheel)))
		w.WriteHeader(http.StatusPartialContent)
	}
	return i.wheel[from:]
}

// counting counts the bytes of the wheel.
type counting struct {
	http.ResponseWriter
	i *fakeIndex
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.i.mu.Lock()
	c.i.sent += int64(n)
	c.i.mu.Unlock()
	return n, err
}

// set takes the wheel's library.
func (i *fakeIndex) set() Set {
	return Set{Name: "a/set-1", Bytes: int64(len(i.wheel)), Parts: []Part{{
		Wheel:  Wheel{Project: "p", File: "p-1.whl", SHA256: sumOf(i.wheel), Size: int64(len(i.wheel))},
		Places: map[string]string{"p/lib/": "lib/", "p-1.dist-info/LICENSE": "LICENSE"},
	}}}
}

// patient is a client that does not wait between attempts.
func patient(cache string) *Client {
	return &Client{Cache: cache, sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }}
}

// wantSet expects the files of the set in its folder, and nothing else in the cache.
func wantSet(t *testing.T, i *fakeIndex, cache string) {
	t.Helper()
	dir := filepath.Join(cache, "a", "set-1")
	big := must.Get(os.ReadFile(filepath.Join(dir, "lib", "big.so")))(t)
	expect.True(t, bytes.Equal(big, noise(len(big))), "the library is damaged")
	for name, want := range map[string]string{"lib/sub/x.txt": "x", "LICENSE": "licence"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		expect.True(t, string(got) == want, "%s: %q, %v", name, got, err)
	}
	expect.Fails(os.Stat(filepath.Join(dir, "__init__.py")))(t, "other members were unpacked")
	expect.True(t, i.set().complete(dir), "the folder is not complete")
	wantFiles(t, filepath.Join(cache, "downloads"), ".lock")
	wantFiles(t, filepath.Join(cache, "a"), "set-1")
}

// wantFiles expects exactly the named files in a folder.
func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	expect.Require(t, err == nil || len(want) == 0, "%v", err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	expect.Same(t, fmt.Sprint(want), fmt.Sprint(got), "%s has %q, want %q", dir, got, want)
}

func TestSettings(t *testing.T) {
	write := func(t *testing.T, path, text string) string {
		t.Helper()
		must.Write(t, path, text)
		return path
	}
	dir := t.TempDir()
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_CONFIG_DIRS", filepath.Join(dir, "etc"))
	t.Setenv("VIRTUAL_ENV", filepath.Join(dir, "venv"))
	t.Setenv("PIP_CONFIG_FILE", "")
	indexes := func(want ...string) {
		t.Helper()
		s, err := readSettings()
		expect.True(t, err == nil && cmp.Equal(s.indexes, want), "got %q, %v, want %q", s.indexes, err, want)
	}
	write(t, filepath.Join(dir, "etc", "pip", "pip.conf"), "[global]\nindex-url = https://global/simple/\nproxy: proxy:3128\n")
	indexes("https://global/simple")
	write(t, filepath.Join(dir, ".config", "pip", "pip.conf"), "# mine\n[global]\nindex_url=https://user/simple\n")
	indexes("https://user/simple")
	write(t, filepath.Join(dir, "venv", "pip.conf"), "[global]\nindex-url = https://venv/simple\n[install]\nextra-index-url =\n    https://a/simple\n    https://b/simple\n")
	indexes("https://venv/simple", "https://a/simple", "https://b/simple")
	t.Setenv("PIP_CONFIG_FILE", write(t, filepath.Join(dir, "own.conf"), "[install]\nindex-url = https://own/simple\n"))
	t.Setenv("PIP_EXTRA_INDEX_URL", "https://c/simple")
	indexes("https://own/simple", "https://c/simple")
	t.Setenv("PIP_INDEX_URL", "https://variable/simple")
	indexes("https://variable/simple", "https://c/simple")
	if s, err := readSettings(); err != nil || s.proxy.String() != "http://proxy:3128" {
		t.Errorf("proxy %v, %v", s.proxy, err)
	}
	t.Setenv("PIP_NO_INDEX", "true")
	indexes()
	t.Setenv("PIP_NO_INDEX", "")
	t.Setenv("PIP_INDEX_URL", "user:secret@host/simple")
	_, err := readSettings()
	expect.True(t, err != nil && strings.Contains(err.Error(), "index-url") && !strings.Contains(err.Error(), "secret"), "got %v", err)
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	t.Setenv("PIP_INDEX_URL", "")
	t.Setenv("PIP_EXTRA_INDEX_URL", "")
	indexes(publicIndex)
	t.Setenv("PIP_CONFIG_FILE", write(t, filepath.Join(dir, "bad.conf"), "[global]\nindex-url\n"))
	expect.Failure(readSettings())(t, "bad.conf:2: ")
}

func TestNetrc(t *testing.T) {
	got := parseNetrc([]byte(`# logins
machine Example.org
	login ann password #not-a-comment # a comment
machine macro login x password y
macdef init
machine evil login no password no

machine example.org login other password other
machine q login "a\"b" password "p"
default login guest password guest
`))
	want := map[string]login{
		"example.org": {"ann", "#not-a-comment"}, "macro": {"x", "y"}, "q": {`a"b`, "p"}, "": {"guest", "guest"},
	}
	expect.Equal(t, want, got, cmp.AllowUnexported(login{}))
}

func TestHTMLPage(t *testing.T) {
	base := must.Get(url.Parse("https://index/simple/p/"))(t)
	got := parseHTML(base, []byte(`<base href="https://files/x/"><a href="a.whl?x=1&amp;y=2#sha256=AB">a</a>
<a data-x=">" href='/b%2B1.whl'>b</a><A HREF=c.tar.gz>c</A><a name="d">d</a><a href="../">up</a><abbr href="e.whl">`))
	want := map[string]link{
		"a.whl": {"https://files/x/a.whl?x=1&y=2", "AB"}, "b+1.whl": {"https://files/b%2B1.whl", ""}, "c.tar.gz": {"https://files/x/c.tar.gz", ""},
	}
	expect.Equal(t, want, got, cmp.AllowUnexported(link{}))
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`<a href="x.whl#sha256=1">x</a>`))
	f.Add([]byte(`{"files":[{"filename":"x.whl","url":"../x.whl","hashes":{"sha256":"1"}}]}`))
	f.Add([]byte(`<base href="//h/"><a data-x='>' href=y.zip>`))
	base := must.Get(url.Parse("https://index/simple/p/"))(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		page := parseHTML(base, data)
		for name, found := range page {
			expect.True(t, !strings.Contains(name, "/"), "a file is called %q", name)
			must.Get(url.Parse(found.address))(t)
		}
		files, err := parseJSON(base, data)
		expect.True(t, err != nil || files != nil, "neither files nor an error")
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("[global]\nindex-url = https://a\n"))
	f.Add([]byte("[install]\nextra_index_url:\n  a\n\n  b\n; c\n[x]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values := map[string]string{}
		if err := parseConfig(data, values); err != nil {
			return
		}
		for key, value := range values {
			expect.True(t, strings.Contains(key, ".") && strings.TrimSpace(value) == value, "%q = %q", key, value)
		}
	})
}

func FuzzNetrc(f *testing.F) {
	f.Add([]byte("machine a login b password c\ndefault login d\nmacdef x\ny\n\nmachine z"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for host := range parseNetrc(data) {
			expect.Same(t, strings.ToLower(host), host, "host")
		}
	})
}

package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// weights are long enough that a cut connection has delivered something.
var weights = strings.Repeat("0123456789abcdef", 1<<16)

// oneFile publishes a model whose weights are one large file and returns the path of its blob.
func oneFile(h *fakeHub) (blob string) {
	h.publish(commit1, map[string]string{"config.json": "{}", "model.safetensors": weights}, name)
	return filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--name", "blobs", sha256Of(weights))
}

func storeLog(h *fakeHub) []string {
	return slices.DeleteFunc(h.taken(), func(line string) bool { return !strings.HasPrefix(line, "STORE") })
}

func TestResume(t *testing.T) {
	half := len(weights) / 2
	rest := fmt.Sprintf("STORE model.safetensors bytes=%d-", half)
	for what, tc := range map[string]struct {
		left    string
		deliver func(http.ResponseWriter, *http.Request, string) bool
		want    []string
	}{
		"goes on":              {left: weights[:half], want: []string{rest}},
		"all was there":        {left: weights, want: []string{}},
		"another beginning":    {left: strings.Repeat("x", half), want: []string{rest, "STORE model.safetensors"}},
		"too much":             {left: weights + "x", want: []string{"STORE model.safetensors"}},
		"all there, but wrong": {left: strings.Repeat("x", len(weights)), want: []string{"STORE model.safetensors"}},
		"a store without ranges": {left: weights[:half], want: []string{rest}, deliver: func(w http.ResponseWriter, _ *http.Request, content string) bool {
			_, _ = w.Write([]byte(content))
			return true
		}},
		"a store that sends another range": {left: weights[:half], want: []string{rest, "STORE model.safetensors"}, deliver: func(w http.ResponseWriter, r *http.Request, content string) bool {
			if r.Header.Get("Range") == "" {
				return false
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 7-%d/%d", len(content)-1, len(content)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte(content[7:]))
			return true
		}},
		"a store that refuses ranges": {left: weights[:half], want: []string{rest, "STORE model.safetensors"}, deliver: func(w http.ResponseWriter, r *http.Request, _ string) bool {
			if r.Header.Get("Range") == "" {
				return false
			}
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return true
		}},
	} {
		h, c := newFake(t), newTester()
		blob := oneFile(h)
		must.Write(t, blob+".incomplete", tc.left)
		h.deliver = tc.deliver
		c.get(t, "org/name")
		expect.True(t, must.Read(t, blob) == weights && !exists(blob+".incomplete"), "%s: the blob is not what the Hub has, or its beginning stayed", what)
		expect.Equal(t, tc.want, storeLog(h), what)
		want := int64(len(weights) + 2)
		expect.True(t, c.done == want && c.total == want, "%s: progress ends at %d of %d, want %d", what, c.done, c.total, want)
	}
}

// begin sends the headers of the rest of a file that a request asks for, and returns where it begins.
func begin(w http.ResponseWriter, r *http.Request, size int) (from int) {
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
		w.Header().Set("Content-Length", fmt.Sprint(size-from))
		w.WriteHeader(http.StatusPartialContent)
	}
	return from
}

func TestCutConnections(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	cuts := []int{100, 200, 300}
	h.deliver = func(w http.ResponseWriter, r *http.Request, content string) bool {
		if len(cuts) == 0 {
			return false
		}
		from := begin(w, r, len(content))
		n := cuts[0] - from
		cuts = cuts[1:]
		cut(w, content[from:], n)
		return true
	}
	c.get(t, "org/name")
	expect.Same(t, weights, must.Read(t, blob), "the blob is not what the Hub has")
	want := []string{"STORE model.safetensors"}
	for _, n := range []int{100, 200, 300} {
		want = append(want, fmt.Sprintf(`STORE model.safetensors bytes=%d- "of-the-store"`, n))
	}
	expect.Equal(t, want, storeLog(h))
	expect.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}, c.pauses)
}

// If a file changes between two parts, the store sends all of it, because of If-Range.
func TestChangedBetweenParts(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	parts := 0
	h.deliver = func(w http.ResponseWriter, _ *http.Request, content string) bool {
		parts++
		w.Header().Set("ETag", fmt.Sprintf(`"version-%d"`, parts))
		if parts == 1 {
			cut(w, strings.Repeat("x", len(content)), 500)
		}
		return false
	}
	c.get(t, "org/name")
	expect.Same(t, weights, must.Read(t, blob), "the blob is not what the Hub has")
	want := int64(len(weights) + 2)
	expect.True(t, c.done == want && c.total == want, "progress ends at %d of %d, want %d", c.done, c.total, want)
}

func TestWrongChecksum(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	h.deliver = func(w http.ResponseWriter, _ *http.Request, content string) bool {
		_, _ = w.Write([]byte(strings.Repeat("x", len(content))))
		return true
	}
	c.refuses(t, "org/name", "model.safetensors: the download has checksum", "the Hub announces "+sha256Of(weights), "try again")
	expect.True(t, !exists(blob) && !exists(blob+".incomplete"), "it was kept")
	h.deliver = func(w http.ResponseWriter, _ *http.Request, content string) bool {
		_, _ = w.Write([]byte(content + "x"))
		return true
	}
	c.refuses(t, "org/name", "sends more than the 1048576 bytes that the Hub announces")

	h, c = newFake(t), newTester()
	h.publish(commit1, map[string]string{"config.json": "{}", "model.safetensors": "w"}, name)
	h.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/config.json") {
			_, _ = w.Write([]byte("[]"))
			return true
		}
		return false
	}
	c.refuses(t, "org/name", "config.json: the download has checksum "+gitOf("[]"), "the Hub announces "+gitOf("{}"))
}

func TestRefusals(t *testing.T) {
	status := func(code int, headers ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(code)
			return true
		}
	}
	four := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
	for what, tc := range map[string]struct {
		token  string
		answer func(http.ResponseWriter, *http.Request) bool
		want   []string
		pauses []time.Duration
	}{
		"no such repository": {answer: status(401, "X-Error-Code", "RepoNotFound"), want: []string{"is neither a folder nor in", "has no model org/name that is visible without HF_TOKEN"}},
		"no such repository for the token": {
			token: "hf_secret", answer: status(404, "X-Error-Code", "RepoNotFound"), want: []string{"has no model org/name that the token in HF_TOKEN can access"},
		},
		"gated":               {answer: status(401, "X-Error-Code", "GatedRepo"), want: []string{"model org/name: it is gated: accept its terms at http://127.0.0.1", "/org/name, then set HF_TOKEN"}},
		"gated for the token": {token: "hf_secret", answer: status(403, "X-Error-Code", "GatedRepo"), want: []string{"the account of the token in HF_TOKEN has no access: request access at"}},
		"a bad token":         {token: "hf_secret", answer: status(401, "X-Error-Message", "Invalid credentials in Authorization header"), want: []string{"the Hub does not accept the token in HF_TOKEN: make a new one at"}},
		"forbidden":           {answer: status(403, "X-Error-Message", "Access to this resource is disabled.\nOdd"), want: []string{`answers "403 Forbidden": "Access to this resource is disabled.`}},
		"rate limited": {
			answer: status(429, "Retry-After", "17"), want: []string{"limits requests: try again in 17s, or set HF_TOKEN for a higher limit; tried 5 times"},
			pauses: []time.Duration{17 * time.Second, 17 * time.Second, 17 * time.Second, 17 * time.Second},
		},
		"rate limited for long": {
			token: "hf_secret", answer: status(429, "RateLimit", `"api";r=0;t=1200`), want: []string{"try again in 20m0s"},
		},
		"rate limited until": {
			answer: status(429, "Date", "Mon, 02 Nov 2026 10:00:00 GMT", "Retry-After", "Mon, 02 Nov 2026 10:00:02 GMT"), want: []string{"try again in 2s"},
			pauses: []time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
		},
		"broken":    {answer: status(503), want: []string{`answers "503 Service Unavailable"; tried 5 times`}, pauses: four},
		"not a Hub": {answer: status(200), want: []string{"lists it in an unknown format"}},
		"a teapot":  {answer: status(418), want: []string{`answers "418 I'm a teapot"`}},
		"cut off":   {answer: func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, want: []string{"no connection to", "tried 5 times"}, pauses: four},
		"a carousel": {answer: func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
			return true
		}, want: []string{"10 redirects"}, pauses: four},
	} {
		h, c := newFake(t), newTester()
		t.Setenv("HF_TOKEN", tc.token)
		h.publish(commit1, tinyModel(), name)
		h.answer = tc.answer
		c.refuses(t, "org/name", tc.want...)
		expect.Equal(t, tc.pauses, c.pauses, what)
		// Both servers answer requests for a file alike.
		h = newFake(t)
		t.Setenv("HF_TOKEN", tc.token)
		h.publish(commit1, tinyModel(), name)
		h.answer = func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/resolve/") && tc.answer(w, r)
		}
		_, err := newTester().Model(t.Context(), "org/name", Weights)
		expect.True(t, err != nil && !strings.Contains(err.Error(), "\n") && !strings.Contains(err.Error(), "hf_secret"), "%s for a file: %v", what, err)
	}
}

// If the store refuses a request, the client asks the Hub for a new signed address.
func TestStoreErrors(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	codes := []int{403, 500, 429}
	h.deliver = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		if len(codes) == 0 {
			return false
		}
		w.WriteHeader(codes[0])
		codes = codes[1:]
		return true
	}
	c.get(t, "org/name")
	expect.True(t, must.Read(t, blob) == weights && len(c.pauses) == 3, "pauses %v", c.pauses)
}

// The token only goes to the Hub, through every redirect: to another port, to another host and back.
func TestTokenStaysAtTheHub(t *testing.T) {
	h, c := newFake(t), newTester()
	t.Setenv("HF_TOKEN", "hf_secret")
	oneFile(h)
	var mu sync.Mutex
	seen := map[string][]string{}
	note := func(place string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if got := r.Header.Get("Authorization"); !slices.Contains(seen[place], got) {
			seen[place] = append(seen[place], got)
		}
	}
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("far", r)
		http.Redirect(w, r, h.hub.URL+"/back", http.StatusFound)
	}))
	defer far.Close()
	h.answer = func(w http.ResponseWriter, r *http.Request) bool {
		note("hub", r)
		switch {
		case r.URL.Path == "/back":
			_, _ = w.Write([]byte(weights))
			return true
		case strings.Contains(r.URL.Path, "/org/name/"): // the repository was renamed
			http.Redirect(w, r, strings.Replace(r.URL.RequestURI(), "/org/name/", "/new/name/", 1), http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	h.refs["models/new/name@main"] = commit1
	h.deliver = func(w http.ResponseWriter, r *http.Request, _ string) bool {
		note("store", r)
		http.Redirect(w, r, strings.Replace(far.URL, "127.0.0.1", "localhost", 1), http.StatusFound)
		return true
	}
	c.get(t, "org/name")
	expect.Equal(t, map[string][]string{"hub": {"Bearer hf_secret"}, "store": {""}, "far": {""}}, seen)
}

// stall sends 1,000 bytes and no more.
func stall(w http.ResponseWriter, r *http.Request, content string) bool {
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	_, _ = w.Write([]byte(content[:1000]))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	return true
}

// The client retries if a store stalls.
func TestSilence(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	must.Get(c.Model(t.Context(), "org/name", NoWeights))(t)
	var awake atomic.Bool
	h.deliver = func(w http.ResponseWriter, r *http.Request, content string) bool {
		if awake.Load() {
			return false
		}
		return stall(w, r, content)
	}
	s := must.Get(c.session(repo{modelKind, "org/name", mainBranch}))(t)
	s.bytesTimeout = 200 * time.Millisecond
	s.Sleep = func(context.Context, time.Duration) error {
		awake.Store(true)
		return nil
	}
	must.Get(s.model(t.Context(), Weights, ""))(t)
	expect.True(t, must.Read(t, blob) == weights && awake.Load(), "the blob is not what the Hub has")
}

func TestCancel(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	ctx, cancel := context.WithCancelCause(t.Context())
	h.deliver = stall
	c.Progress = func(_ string, done, _ int64) {
		if done > 500 {
			cancel(errors.New("interrupt")) // as a signal: the error is still the caller's cancellation
		}
	}
	_, err := c.Model(ctx, "org/name", Weights)
	expect.True(t, errors.Is(err, context.Canceled), "got %v", err)
	h.deliver, c.Progress = nil, nil
	c.get(t, "org/name")
	log := storeLog(h)
	expect.True(t, log[len(log)-1] == "STORE model.safetensors bytes=1000-" && must.Read(t, blob) == weights, "it did not continue where it stopped: %q", log)
}

// The client asks a slow store again for the remaining bytes. If that does not help, it gives up, and keeps the partial file for the
// next run.
func TestDrip(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	h.deliver = func(w http.ResponseWriter, r *http.Request, content string) bool {
		for i := begin(w, r, len(content)); r.Context().Err() == nil && i < len(content); i++ {
			_, _ = w.Write([]byte(content[i : i+1]))
			_ = http.NewResponseController(w).Flush()
		}
		return true
	}
	s := must.Get(c.session(repo{modelKind, "org/name", mainBranch}))(t)
	var ticks atomic.Int64
	s.Now = func() time.Time { return time.Unix(ticks.Add(1), 0) } // a second per look at the clock
	_, err := s.model(t.Context(), Weights, "")
	wantError(t, "drip", err, "model.safetensors: ", " sends ", " bytes in 1m", "; tried 5 times")
	log := storeLog(h)
	expect.True(t, len(log) == 5 && strings.Contains(log[4], "bytes="), "it did not continue where it stopped: %q", log)
	kept := must.Read(t, blob+".incomplete")
	expect.True(t, kept != "" && strings.HasPrefix(weights, kept), "%d bytes stayed", len(kept))
}

// A file of unknown size has a limit.
func TestUnsizedFile(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{"config.json": "{}"}, name)
	h.answer = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/"):
			_, _ = fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"config.json"}]}`, commit1)
		case r.Method == http.MethodHead:
			w.Header().Set("ETag", `"endless"`)
			w.Header().Set("Transfer-Encoding", "chunked")
		default:
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(weights[:1000]))
			}
		}
		return true
	}
	s := must.Get(c.session(repo{modelKind, "org/name", mainBranch}))(t)
	s.unsized = 1 << 20
	_, err := s.model(t.Context(), NoWeights, "")
	wantError(t, "endless", err, "config.json: ", " sends more than 1048576 bytes of a file of unknown size")
}

func TestFullDisk(t *testing.T) {
	h, c := newFake(t), newTester()
	blob := oneFile(h)
	must.Do(t, os.MkdirAll(filepath.Dir(blob), 0o755))
	must.Do(t, os.Symlink("/dev/full", blob+".incomplete"))
	c.refuses(t, "org/name", "model.safetensors: the disk of ", " is full; free some space")

	// If the listing shows that the disk is too small, no download starts.
	h.publish(commit2, map[string]string{"config.json": "{}"})
	h.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/api/") {
			return false
		}
		_, _ = fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"config.json"},{"rfilename":"model.safetensors","size":%d}]}`, commit2, int64(1)<<60)
		return true
	}
	h.taken()
	c.refuses(t, "org/name", "MB free, the download needs 1152921504606 MB; free some")
	log := storeLog(h)
	expect.True(t, len(log) == 0, "it began: %q", log)
}

func TestLock(t *testing.T) {
	h, c := newFake(t), newTester()
	oneFile(h)
	locks := filepath.Join(os.Getenv("HF_HOME"), "hub", ".locks", "models--org--name")
	must.Do(t, os.MkdirAll(locks, 0o755))
	// As in the Python package: flock(2) on this file.
	held := must.Get(os.Create(filepath.Join(locks, sha256Of(weights)+".lock")))(t)
	must.Do(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	c.Warn = func(message string) {
		expect.True(t, strings.Contains(message, "waiting for another download of model.safetensors"), "warning %q", message)
		log := storeLog(h)
		expect.True(t, len(log) == 0, "it did not wait: %q", log)
		_ = held.Close()
	}
	c.get(t, "org/name")

	h, c = newFake(t), newTester()
	blob := oneFile(h)
	ctx, cancel := context.WithCancel(t.Context())
	locks = filepath.Join(os.Getenv("HF_HOME"), "hub", ".locks", "models--org--name")
	must.Do(t, os.MkdirAll(locks, 0o755))
	other := flock.New(filepath.Join(locks, sha256Of(weights)+".lock"))
	must.Do(t, other.Lock())
	defer other.Close()
	c.Warn = func(string) { cancel() }
	_, err := c.Model(ctx, "org/name", Weights)
	expect.True(t, errors.Is(err, context.Canceled) && !exists(blob), "waiting for a lock does not end: %v", err)
}

// Goroutines and processes that want the same model at the same time download it once.
func TestAtOnce(t *testing.T) {
	if os.Getenv("HUB_TEST_CHILD") != "" {
		m := must.Get(new(Client).Model(t.Context(), "org/name", Weights))(t)
		expect.Require(t, must.Read(t, filepath.Join(m.Dir, "model.safetensors")) == weights, "the weights are not what the Hub has")
		return
	}
	h := newFake(t)
	oneFile(h)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			m, err := newTester().Model(t.Context(), "org/name", Weights)
			if err != nil {
				t.Error(err)
			} else if data, err := os.ReadFile(filepath.Join(m.Dir, "model.safetensors")); err != nil || string(data) != weights {
				t.Errorf("the weights are not what the Hub has: %v", err)
			}
		})
		all.Go(func() {
			child := exec.Command(os.Args[0], "-test.run=^TestAtOnce$")
			child.Env = append(os.Environ(), "HUB_TEST_CHILD=1")
			out, err := child.CombinedOutput()
			expect.True(t, err == nil, "%v: %s", err, out)
		})
	}
	all.Wait()
	log := storeLog(h)
	expect.True(t, len(log) == 1, "%d downloads, want 1: %q", len(log), log)
}

package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// adapter writes an adapter for the model of s with every weight equal to change.
func adapter(t testing.TB, s *running, dir string, seed uint64, change ...func(float32) float32) {
	t.Helper()
	must.Do(t, s.engine.ask(t.Context(), func() error {
		p, err := policy.NewCausalLM(policy.Config{Dir: s.base.BaseModel, R: 2, Alpha: 4, Seed: seed})
		if err != nil {
			return err
		}
		defer p.Close()
		for i, v := range p.Params() {
			values, err := v.Read()
			if err != nil {
				return err
			}
			for j := range values {
				values[j] += float32((i*7+j*13+int(seed)*5)%11-5) / 20
				for _, f := range change {
					values[j] = f(values[j])
				}
			}
			if err := v.Write(values); err != nil {
				return err
			}
		}
		return p.SaveAdapter(dir)
	}))
}

func TestAdaptersComeAndGo(t *testing.T) {
	allowed, outside := t.TempDir(), t.TempDir()
	s := start(t, Config{AdapterDirs: []string{allowed}, MaxAdapters: 2})
	for name, dir := range map[string]string{"a": allowed + "/a", "b": allowed + "/b", "c": allowed + "/deep/c", "x": outside + "/x"} {
		adapter(t, s, dir, uint64(name[0]))
	}
	must.Write(t, allowed+"/a/generation_config.json", `{"eos_token_id":[2,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39]}`)
	must.Do(t, os.Symlink(outside+"/x", allowed+"/link"))
	load := func(name, path string, want int, text string) {
		t.Helper()
		status, got := s.ask(t, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, path))
		expect.True(t, status == want && strings.Contains(got, text), "loading %s from %s: status %d, %s, want %d, %s", name, path, status, got, want, text)
	}
	load("x", outside+"/x", 403, "outside the folders")
	load("x", allowed+"/link", 403, "outside the folders")
	load("x", allowed+"/../"+filepath.Base(outside)+"/x", 403, "outside the folders")
	load("x", "a", 400, "absolute path")
	load("x", allowed+"/nothing", 404, "not found")
	load("x", allowed+"/deep", 404, "no adapter_config.json")
	load("tiny", allowed+"/a", 400, "has already been loaded")
	load("", allowed+"/a", 400, "lora_name")
	load("a", allowed+"/a", 200, "Success")
	load("a", allowed+"/b", 400, "has already been loaded")
	load("b", allowed+"/b", 200, "Success")
	load("c", allowed+"/deep/c", 400, "--max-adapters")

	prompt := [][]int32{{5, 6, 7}}
	o := policy.GenerateOptions{Samples: 3, MaxNew: 8, Seed: 4, Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}
	want := map[string][]policy.Completion{"tiny": direct(t, s, "", prompt, o)[0], "a": direct(t, s, allowed+"/a", prompt, o)[0], "b": direct(t, s, allowed+"/b", prompt, o)[0]}
	expect.Require(t, !slices.Equal(want["a"][0].IDs, want["b"][0].IDs) || !slices.Equal(want["a"][1].IDs, want["b"][1].IDs), "the adapters write the same")
	expect.Require(t, slices.ContainsFunc(want["a"], func(c policy.Completion) bool { return len(c.IDs) < 8 }), "no completion ends at an end of the adapter's own")
	var clients sync.WaitGroup
	for i := range 12 {
		name := []string{"tiny", "a", "b"}[i%3]
		clients.Go(func() {
			got := s.complete(t, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":[5,6,7],"n":3,"max_tokens":8,"seed":4,"return_token_ids":true}`, name))
			for k, c := range got.Choices {
				expect.True(t, slices.Equal(c.IDs, want[name][k].IDs), "%s, sample %d: %v, want %v", name, k, c.IDs, want[name][k].IDs)
			}
		})
	}
	clients.Wait()
	var list struct{ Data []struct{ ID, Parent string } }
	if _, text := s.ask(t, "/v1/models", ""); json.Unmarshal([]byte(text), &list) != nil || len(list.Data) != 3 || list.Data[1].ID != "a" || list.Data[1].Parent != "tiny" {
		t.Errorf("models: %s", text)
	}
	for _, c := range []struct {
		name string
		want int
	}{{"a", 200}, {"a", 404}, {"tiny", 404}} {
		status, text := s.ask(t, "/v1/unload_lora_adapter", fmt.Sprintf(`{"lora_name":%q}`, c.name))
		expect.True(t, status == c.want, "unloading %s: status %d, %s", c.name, status, text)
	}
	if status, _ := s.ask(t, "/v1/completions", `{"model":"a","prompt":"x"}`); status != 404 {
		t.Errorf("an adapter that was unloaded answers with status %d", status)
	}
	s.idle(t)
	load("c", allowed+"/deep/c", 200, "Success")
}

// TestPipes: a named pipe among an adapter's files is refused, and the server goes on.
func TestPipes(t *testing.T) {
	root := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	s := start(t, Config{AdapterDirs: []string{root}, MaxAdapters: 2})
	for _, file := range []string{lora.ConfigFile, lora.WeightsFile} {
		dir := filepath.Join(root, file)
		adapter(t, s, dir, 3)
		must.Do(t, errors.Join(os.Remove(filepath.Join(dir, file)), syscall.Mkfifo(filepath.Join(dir, file), 0o600)))
		status, text := s.ask(t, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":"x","lora_path":%q}`, dir))
		expect.True(t, status == 400 && strings.Contains(text, "not a regular file"), "%s: status %d, %s", file, status, text)
		s.complete(t, "/v1/completions", `{"model":"tiny","prompt":[5],"max_tokens":1}`)
	}
}

// TestBrokenAdapterFailsOnlyItsRequests: requests with an adapter that gives no probabilities get an error; the others in the
// batch get the same tokens as by themselves.
func TestBrokenAdapterFailsOnlyItsRequests(t *testing.T) {
	allowed := t.TempDir()
	s := start(t, Config{AdapterDirs: []string{allowed}, MaxAdapters: 1, Slots: 8})
	adapter(t, s, allowed+"/broken", 1, func(float32) float32 { return float32(math.NaN()) })
	status, text := s.ask(t, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":"broken","lora_path":%q}`, allowed+"/broken"))
	expect.Require(t, status == 200, "status %d, %s", status, text)
	want := direct(t, s, "", [][]int32{{5, 6}}, policy.GenerateOptions{Samples: 2, MaxNew: 30, Seed: 4, Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}})[0]
	release := s.hold()
	var clients sync.WaitGroup
	for i := range 6 {
		clients.Go(func() {
			if i%2 == 0 {
				got := s.complete(t, "/v1/completions", `{"model":"tiny","prompt":[5,6],"n":2,"max_tokens":30,"seed":4,"return_token_ids":true}`)
				for k, c := range got.Choices {
					expect.True(t, slices.Equal(c.IDs, want[k].IDs), "sample %d: %v, want %v", k, c.IDs, want[k].IDs)
				}
				return
			}
			status, text := s.ask(t, "/v1/completions", `{"model":"broken","prompt":[5,6],"n":2}`)
			expect.True(t, status == 500 && strings.Contains(text, "logits are not finite"), "status %d, %s", status, text)
		})
	}
	for s.waiting() < 6 {
		runtime.Gosched()
	}
	release()
	clients.Wait()
	s.idle(t)
}

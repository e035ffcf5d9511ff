package policy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestPipesInAModelFolder: a named pipe in place of a file is an error that names it, and nothing waits for a writer.
func TestPipesInAModelFolder(t *testing.T) {
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			must.Do(t, policy.TinyChatModel(dir, 1, 32, 1))
			if strings.HasSuffix(name, ".index.json") {
				must.Do(t, os.Remove(filepath.Join(dir, "model.safetensors")))
			}
			err := os.Remove(filepath.Join(dir, name))
			expect.Require(t, err == nil || os.IsNotExist(err), "%v", err)
			must.Do(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
			opened := make(chan error, 1)
			go func() {
				p, err := policy.NewCausalLM(policy.Config{Dir: dir})
				if err == nil {
					p.Close()
				}
				opened <- err
			}()
			select {
			case err := <-opened:
				expect.Error(t, err, name, "not a regular file")
			case <-time.After(time.Minute):
				t.Fatal("it waits")
			}
		})
	}
}

func TestFirstStop(t *testing.T) {
	for _, test := range []struct {
		text  string
		stop  []string
		at    int
		found string
	}{
		{"a\n\nb", []string{"\n", "\n\n"}, 1, "\n\n"},
		{"a\n\nb", []string{"\n\n", "\n"}, 1, "\n\n"},
		{"ab", []string{"b", "a"}, 0, "a"},
		{"ab", []string{"c"}, -1, ""},
		{"ab", nil, -1, ""},
	} {
		at, found := policy.FirstStop(test.text, test.stop)
		expect.True(t, at == test.at && found == test.found, "%q of %q: %q at %d", test.stop, test.text, found, at)
	}
}

// TestFamiliesSaveAsPEFTAndMerge: for each encoder family, the saved tensors have PEFT's names, and the classifier
// predicts the same after reloading and after merging.
func TestFamiliesSaveAsPEFTAndMerge(t *testing.T) {
	for _, folder := range must.Get(os.ReadDir(filepath.Join("..", "..", "torch", "transformers", "testdata", "encoders")))(t) {
		for _, pooling := range []string{transformers.PoolMean, transformers.PoolFamily} {
			t.Run(folder.Name()+"/"+pooling, func(t *testing.T) {
				torchtest.NoLeaks(t)
				encoder := policytest.Fixture(t, filepath.Join("encoders", folder.Name()))
				dir := policytest.Classifier(t, encoder, pooling, "LABEL_0", "LABEL_1", "LABEL_2")
				adapted := loadPolicy(t, dir)
				limit := adapted.MaxLength
				expect.True(t, limit >= 19, "texts of %d tokens at most", limit)
				if pooling == transformers.PoolFamily {
					var want []string
					must.JSON(t, filepath.Join(encoder, "adapter_names.json"), &want)
					expect.Same(t, "", cmp.Diff(want, tensorNames(t, filepath.Join(dir, "adapter_model.safetensors"))), "tensors of the adapter (-PEFT +ours)\n")
				}
				merged := filepath.Join(t.TempDir(), "merged")
				must.Do(t, adapted.Merge(merged, ""))
				var config map[string]json.RawMessage
				must.JSON(t, filepath.Join(merged, "config.json"), &config)
				n, ok := config["initializer_cutoff_factor"]
				expect.True(t, !ok || string(n) == "2.0", "a float of config.json became %s, which transformers refuses", n)
				want := probabilities(t, adapted)
				torchtest.Near(t, probabilities(t, loadPolicy(t, merged)), want, 1e-5, "merged, probabilities")
				if pooling == transformers.PoolMean {
					return
				}
				// The merged folder has the fixture's layout, unless that has no prefix.
				again := must.Open(policy.NewClassifier(policy.Config{Dir: merged, Labels: adapted.Labels, R: 2, Alpha: 4}))(t)
				torchtest.Near(t, probabilities(t, again), want, 1e-5, "as a base model, probabilities")
				fixture, names := tensorNames(t, filepath.Join(encoder, "model.safetensors")), tensorNames(t, filepath.Join(merged, "model.safetensors"))
				published := strings.HasSuffix(folder.Name(), "_published") // in names of code of its own
				if !published && (slices.Contains(fixture, "classifier.bias") || slices.Contains(fixture, "classifier.out_proj.bias")) {
					expect.Equal(t, fixture, names, "tensors of the merged model")
				}
			})
		}
	}
}

func tensorNames(t *testing.T, path string) []string {
	t.Helper()
	file := must.Get(safetensors.Open(path))(t)
	defer file.Close()
	return slices.Sorted(slices.Values(file.Names()))
}

package policy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

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
					readJSON(t, filepath.Join(encoder, "adapter_names.json"), &want)
					if diff := cmp.Diff(want, tensorNames(t, filepath.Join(dir, "adapter_model.safetensors"))); diff != "" {
						t.Errorf("tensors of the adapter (-PEFT +ours)\n%s", diff)
					}
				}
				merged := filepath.Join(t.TempDir(), "merged")
				must.Do(t, adapted.Merge(merged, ""))
				var config map[string]json.RawMessage
				readJSON(t, filepath.Join(merged, "config.json"), &config)
				n, ok := config["initializer_cutoff_factor"]
				expect.True(t, !ok || string(n) == "2.0", "a float of config.json became %s, which transformers refuses", n)
				want := probabilities(t, adapted)
				torchtest.Near(t, probabilities(t, loadPolicy(t, merged)), want, 1e-5, "merged, probabilities")
				if pooling == transformers.PoolMean {
					return
				}
				// The merged folder has the fixture's layout, unless that has no prefix.
				again := must.Get(policy.NewClassifier(policy.Config{Dir: merged, Labels: adapted.Labels, R: 2, Alpha: 4}))(t)
				defer again.Close()
				torchtest.Near(t, probabilities(t, again), want, 1e-5, "as a base model, probabilities")
				fixture, names := tensorNames(t, filepath.Join(encoder, "model.safetensors")), tensorNames(t, filepath.Join(merged, "model.safetensors"))
				if slices.Contains(fixture, "classifier.bias") || slices.Contains(fixture, "classifier.out_proj.bias") {
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

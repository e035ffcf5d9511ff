package policy_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

func loadPolicy(t *testing.T, dir string) *policy.Classifier {
	t.Helper()
	return must.Open(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "", false))(t)
}

// probabilities of some texts, 3 to 12 tokens long.
func probabilities(t *testing.T, p *policy.Classifier) []float32 {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 0))
	var ids [][]int32
	for n := 3; n <= 12; n++ {
		sequence := make([]int32, n)
		for i := range sequence {
			sequence[i] = int32(rng.IntN(17))
		}
		ids = append(ids, sequence)
	}
	probs := must.Get(p.Probs(context.Background(), ids))(t)
	var flat []float32
	for _, row := range probs {
		flat = append(flat, row...)
	}
	return flat
}

func TestMergedPolicyPredictsTheSame(t *testing.T) {
	for _, test := range []struct {
		pooling, architecture string
		tensors               int // 5 embeddings, 2 layers of 16, pooler, head
		sample                string
		files                 []string
	}{
		{transformers.PoolMean, "BertModel", 39, "encoder.layer.0.attention.self.query.weight", []string{
			"1_Pooling", "category_mapping.json", "config.json", "head.safetensors", "id2label.json", "label_mapping.json",
			"label_policy.json", "model.safetensors", "modules.json", "tokenizer.json"}},
		{transformers.PoolFamily, "BertForSequenceClassification", 41, "bert.encoder.layer.0.attention.self.query.weight", []string{
			"category_mapping.json", "config.json", "id2label.json", "label_mapping.json", "label_policy.json", "model.safetensors",
			"tokenizer.json"}},
	} {
		t.Run(test.pooling, func(t *testing.T) {
			torchtest.NoLeaks(t)
			encoder := policytest.Encoder(t)
			adapted := loadPolicy(t, policytest.Classifier(t, encoder, test.pooling, "law", "physics", "animals"))
			dir := filepath.Join(t.TempDir(), "new", "merged")
			must.Do(t, adapted.Merge(dir, ""))
			expect.Equal(t, test.files, namesIn(t, dir), "files")
			merged := loadPolicy(t, dir)
			expect.Equal(t, adapted.Labels, merged.Labels, "labels")
			want := probabilities(t, adapted)
			torchtest.Near(t, probabilities(t, merged), want, 1e-5, "probabilities")
			plain := must.Open(policy.NewClassifier(policy.Config{Dir: encoder, Labels: adapted.Labels, Pooling: test.pooling, R: 2, Alpha: 4, Seed: 1}))(t)
			diff := torchtest.MaxDiff(probabilities(t, plain), want)
			expect.True(t, diff >= 1e-2, "the adapter changes probabilities by %g only: the test shows nothing", diff)

			var config struct {
				Architectures []string          `json:"architectures"`
				ID2Label      map[string]string `json:"id2label"`
				Label2ID      map[string]int    `json:"label2id"`
			}
			must.JSON(t, filepath.Join(dir, "config.json"), &config)
			expect.Equal(t, []string{test.architecture}, config.Architectures, "architectures")
			expect.True(t, config.ID2Label["2"] == "animals" && config.Label2ID["animals"] == 2, "labels in config.json: %v, %v", config.ID2Label, config.Label2ID)
			file := must.Open(safetensors.Open(filepath.Join(dir, "model.safetensors")))(t)
			_, ok := file.Lookup(test.sample)
			expect.True(t, ok && len(file.Names()) == test.tensors, "%d tensors, want %d and %s among them: %v", len(file.Names()), test.tensors, test.sample, file.Names())
			// A run that starts from the merged model reads the pooling from the folder.
			expect.Result(transformers.PoolingOf(dir))(t, test.pooling, "pooling")
		})
	}
}

func TestMergeRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	policy := loadPolicy(t, policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "law", "physics"))
	parent := t.TempDir()
	full, file := filepath.Join(parent, "full"), filepath.Join(parent, "file")
	must.Do(t, os.Mkdir(full, 0o755))
	for _, path := range []string{file, filepath.Join(full, "mine")} {
		must.Do(t, os.WriteFile(path, nil, 0o644))
	}
	for dir, want := range map[string]string{
		full:                      "merging: " + full + " is not empty; choose a new folder",
		file:                      "merging: open " + file + ": not a directory; choose a new folder",
		filepath.Join(file, "in"): "merging: lstat " + filepath.Join(file, "in") + ": not a directory; choose a new folder",
	} {
		err := policy.Merge(dir, "")
		expect.True(t, err != nil && err.Error() == want, "\n got %v\nwant %s", err, want)
	}
	expect.Equal(t, []string{"file", "full"}, namesIn(t, parent), "left behind")

	empty := filepath.Join(parent, "empty")
	must.Do(t, os.Mkdir(empty, 0o755))
	must.Do(t, policy.Merge(empty, ""))
	again := filepath.Join(parent, "again")
	err := loadPolicy(t, empty).Merge(again, "")
	expect.True(t, err != nil && err.Error() == "merging: "+empty+" is a full model already", "merging a merged model: %v", err)
	expect.Equal(t, []string{"empty", "file", "full"}, namesIn(t, parent), "left behind")
}

// A base model in another dtype is merged in float32, and its config.json says so.
func TestMergedConfigNamesItsDType(t *testing.T) {
	torchtest.NoLeaks(t)
	encoder := policytest.Encoder(t)
	var config map[string]any
	must.JSON(t, filepath.Join(encoder, "config.json"), &config)
	config["dtype"], config["torch_dtype"] = "bfloat16", "bfloat16" // "torch_dtype" is what older releases of transformers write
	must.Do(t, files.SaveJSON(filepath.Join(encoder, "config.json"), config))
	dir := filepath.Join(t.TempDir(), "merged")
	must.Do(t, loadPolicy(t, policytest.Classifier(t, encoder, transformers.PoolMean, "law", "physics")).Merge(dir, ""))
	clear(config)
	must.JSON(t, filepath.Join(dir, "config.json"), &config)
	for _, key := range []string{"dtype", "torch_dtype"} {
		expect.Same(t, "float32", config[key], "%s", key)
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

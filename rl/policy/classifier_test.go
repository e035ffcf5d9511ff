package policy_test

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
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

			config := must.JSON[struct {
				Architectures []string          `json:"architectures"`
				ID2Label      map[string]string `json:"id2label"`
				Label2ID      map[string]int    `json:"label2id"`
			}](t, filepath.Join(dir, "config.json"))
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

// TestOneToken loads a classifier that reads a single token.
func TestOneToken(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "law", "physics")
	settings := must.JSON[map[string]any](t, filepath.Join(dir, "label_policy.json"))
	settings["max_length"] = 1
	must.Do(t, files.SaveJSON(filepath.Join(dir, "label_policy.json"), settings))
	expect.Same(t, 1, loadPolicy(t, dir).MaxLength, "max_length")
}

// A base model in another dtype is merged in float32, and its config.json says so.
func TestMergedConfigNamesItsDType(t *testing.T) {
	torchtest.NoLeaks(t)
	encoder := policytest.Encoder(t)
	config := must.JSON[map[string]any](t, filepath.Join(encoder, "config.json"))
	config["dtype"], config["torch_dtype"] = "bfloat16", "bfloat16" // "torch_dtype" is what older releases of transformers write
	must.Do(t, files.SaveJSON(filepath.Join(encoder, "config.json"), config))
	dir := filepath.Join(t.TempDir(), "merged")
	must.Do(t, loadPolicy(t, policytest.Classifier(t, encoder, transformers.PoolMean, "law", "physics")).Merge(dir, ""))
	config = must.JSON[map[string]any](t, filepath.Join(dir, "config.json"))
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
					want := must.JSON[[]string](t, filepath.Join(encoder, "adapter_names.json"))
					expect.Same(t, "", cmp.Diff(want, tensorNames(t, filepath.Join(dir, "adapter_model.safetensors"))), "tensors of the adapter (-PEFT +ours)\n")
				}
				merged := filepath.Join(t.TempDir(), "merged")
				must.Do(t, adapted.Merge(merged, ""))
				config := must.JSON[map[string]json.RawMessage](t, filepath.Join(merged, "config.json"))
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
	file := must.Open(safetensors.Open(path))(t)
	return slices.Sorted(slices.Values(file.Names()))
}

// TestRewardModelOfLabels scores by the probability of a classifier's label, from a folder of rltrain and from one of
// transformers.
func TestRewardModelOfLabels(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "bad", "good")
	p := must.Open(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "", false))(t)
	m := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, dir+"#good"))(t)
	var sequences [][]int32
	for _, text := range []string{"the judge", "a"} {
		ids := must.Get(m.Encode(answered(text+"\n", " law ?")))(t)
		sequences = append(sequences, ids)
	}
	probs := must.Get(p.Probs(t.Context(), sequences))(t)
	scores, err := m.Scores(t.Context(), sequences)
	expect.Require(t, err == nil && len(scores) == 2, "%v %v", err, scores)
	for i := range scores {
		expect.True(t, math.Abs(scores[i]-float64(probs[i][1])) <= 1e-6, "text %d: score %v, P(good) %v", i, scores[i], probs[i][1])
	}
	expect.Failure(m.Encode(answered(strings.Repeat("the cat ", 6), "law")))(t, "12 tokens")
	for name, want := range map[string]string{
		dir:             `2 labels, "bad", "good", and no single score`,
		dir + "#better": `no label "better", only "bad", "good"`,
	} {
		expect.Failure(policy.LoadRewardModel(t.Context(), &hub.Client{}, name))(t, want)
	}
}

// TestRewardModelOfTransformers reads a sequence classifier saved by transformers.
func TestRewardModelOfTransformers(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolFamily, "LABEL_0")
	expect.Failure(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "", false))(t, "is a reward model")
	p := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, dir))(t)
	for folder, want := range map[string]bool{dir: true, t.TempDir(): false} {
		expect.Same(t, want, policy.IsRewardFolder(folder), "IsRewardFolder(%s)", folder)
	}
	merged := filepath.Join(t.TempDir(), "merged")
	must.Do(t, p.Merge(merged, ""))
	must.Do(t, os.Remove(filepath.Join(merged, "label_policy.json")))
	var scores [][]float64
	for _, name := range []string{dir, merged, merged + "#LABEL_0"} {
		m := must.Get(policy.LoadRewardModel(t.Context(), &hub.Client{}, name))(t)
		found, err := m.Scores(t.Context(), [][]int32{{0, 9, 8, 2}, {0, 7, 2}})
		m.Close()
		must.Do(t, err)
		scores = append(scores, found)
	}
	for i := range scores[0] {
		expect.True(t, math.Abs(scores[0][i]-scores[1][i]) <= 1e-5 && scores[1][i] == scores[2][i], "sequence %d: %v", i, scores)
	}
	expect.True(t, scores[0][0] != scores[0][1], "the scores of two texts are the same")
	expect.Failure(policy.LoadRewardModel(t.Context(), &hub.Client{}, merged+"#worse"))(t, `one output, "LABEL_0"`)
}

func answered(prompt, completion string) chat.Example {
	return chat.Example{Prompt: chat.Content{Text: prompt}, Completion: chat.Content{Text: completion}}
}

func TestRewardText(t *testing.T) {
	e := policy.Answered(envs.Completion{
		Observation: envs.Observation{Messages: []envs.Message{{Role: "system", Content: "Be brief. "}, {Role: "user", Content: "Well?"}, {Role: "assistant", Content: "I say "}}},
		Text:        "no.\n",
	})
	expect.Same(t, "system: Be brief.\n\nuser: Well?\n\nassistant: I say no.", policy.RewardText(e.Prompt, e.Completion), "RewardText")
	e = policy.Answered(envs.Completion{Observation: envs.Observation{Text: "Q: 1+1\n"}, Text: " 2"})
	expect.Same(t, "Q: 1+1\n\n2", policy.RewardText(e.Prompt, e.Completion), "RewardText")
}

// TestRewardModelOfALanguageModel reads the state of the last token, whatever the batch, and survives a round trip
// through its folder.
func TestRewardModelOfALanguageModel(t *testing.T) {
	torchtest.NoLeaks(t)
	base := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(base, 2, 32, 3))
	m := must.Open(policy.NewRewardModel(policy.Config{Dir: base, R: 4, Alpha: 8, Seed: 5, MaxLength: 40}))(t)
	squares, n := 0.0, 0.0
	for _, g := range must.Get(m.Groups())(t) {
		for _, v := range g.Params {
			for _, w := range must.Get(v.Read())(t) {
				if g.Role == policy.Head {
					squares, n = squares+float64(w)*float64(w), n+1
				}
			}
		}
	}
	expect.True(t, n == 32 && math.Abs(squares-32./33) <= 0.7, "%v new weights of the score have a sum of squares of %v, want about 1", n, squares)
	for _, v := range m.Params() { // a trained adapter
		values := must.Get(v.Read())(t)
		for i := range values {
			values[i] += 0.01 * float32(i%7)
		}
		must.Do(t, v.Write(values))
	}
	var sequences [][]int32
	for _, answer := range []string{"a law", "a cat", ""} {
		ids := must.Get(m.Encode(answered("say something now: ", answer)))(t)
		expect.Same(t, 1, ids[len(ids)-1], "%q does not end with the token that ends a text: %v", answer, ids)
		sequences = append(sequences, ids)
	}
	together := must.Get(m.Scores(t.Context(), sequences))(t)
	dir := t.TempDir()
	must.Do(t, m.Save(dir))
	loaded := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, dir))(t)
	merged := filepath.Join(t.TempDir(), "merged")
	must.Do(t, loaded.Merge(merged, ""))
	expect.True(t, policy.IsRewardFolder(merged), "the merged folder is no reward model's")
	full := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, merged))(t)
	scores, err := full.Scores(t.Context(), sequences)
	expect.Require(t, err == nil && full.MaxLength == m.MaxLength, "%v %v", err, full.MaxLength)
	for i, score := range scores {
		expect.True(t, math.Abs(score-together[i]) <= 1e-5, "answer %d: the merged model scores %v, the adapter %v", i, score, together[i])
	}
	for i, ids := range sequences {
		alone := must.Get(loaded.Scores(t.Context(), [][]int32{ids}))(t)
		other := must.Get(m.Scores(t.Context(), [][]int32{append(append([]int32(nil), ids[:len(ids)-1]...), 7)}))(t)
		expect.True(t, math.Abs(alone[0]-together[i]) <= 1e-5 && math.Abs(other[0]-together[i]) >= 1e-4,
			"answer %d: score %v, unbatched and reloaded %v, with another last token %v", i, together[i], alone[0], other[0])
	}
	expect.Failure(m.Encode(answered(strings.Repeat("x", 50), "y")))(t, "longer than the 40 tokens")
}

package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

const (
	configFile  = "config.json"
	adapterFile = "adapter_config.json"
)

// smallFiles are fetched with the weights: files of models, sentence encoders, adapters and rltrain's classifiers.
var smallFiles = []string{
	configFile, "generation_config.json",
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "spm.model",
	"chat_template.jinja", "chat_template.json",
	"modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
	adapterFile,
	"label_policy.json", "label_mapping.json", "category_mapping.json",
}

// templatePattern matches additional chat templates.
const templatePattern = "additional_chat_templates/*.jinja"

// weightFiles are the layouts of weights in order of preference: one file, or an index of shards.
var weightFiles = []struct{ file, index string }{
	{"model.safetensors", "model.safetensors.index.json"},
	{"pytorch_model.bin", "pytorch_model.bin.index.json"},
}

// extraWeights belong to an adapter or to one of rltrain's classifiers.
var extraWeights = []string{"adapter_model.safetensors", "head.safetensors", "value_head.safetensors"}

// model fetches a model. file is the GGUF file to use; "" for none in particular.
func (s *session) model(ctx context.Context, need Need, file string) (Model, error) {
	chosen := ""
	t, err := s.at(ctx, (*tree).settled, func(t *tree) (err error) {
		if chosen, err = t.gguf(file); err != nil {
			return err
		}
		if chosen != "" {
			return t.fetchGGUF(ctx, chosen)
		}
		return t.fetchModel(ctx, need)
	})
	if err != nil {
		return Model{}, err
	}
	if !t.cached {
		if err := t.setAbsent(t.commit, t.lacks(smallFiles...)); err != nil {
			return Model{}, err
		}
	}
	if chosen != "" {
		m, err := importGGUF(filepath.Join(t.snapshot(t.commit), filepath.FromSlash(chosen)), t.id+"/"+chosen, nil)
		m.Commit = t.commit
		return m, err
	}
	return Model{Dir: t.snapshot(t.commit), Name: t.id, Commit: t.commit}, nil
}

// gguf is the GGUF file to use: wanted, or the only one if the repository has no other weights; "" for none.
func (t *tree) gguf(wanted string) (string, error) {
	if wanted == "" {
		for _, layout := range weightFiles {
			if len(t.has(layout.file, layout.index)) > 0 {
				return "", nil
			}
		}
		if len(t.has(adapterFile)) > 0 {
			return "", nil
		}
	}
	return chooseGGUF(t.names(), wanted)
}

// settled reports whether the cache knows of every small file if the commit has it.
func (t *tree) settled() bool {
	return !slices.ContainsFunc(t.lacks(smallFiles...), func(name string) bool { return !t.absent(t.commit, name) })
}

// fetchModel fetches the files that loading a model reads.
func (t *tree) fetchModel(ctx context.Context, need Need) error {
	small := t.has(smallFiles...)
	for _, name := range t.names() {
		if ok, _ := path.Match(templatePattern, name); ok {
			small = append(small, name)
		}
	}
	if len(t.has(configFile, adapterFile)) == 0 {
		if t.cached {
			return t.absence(configFile)
		}
		return fmt.Errorf("it has neither %s nor %s: it is not a model in the Hugging Face layout", configFile, adapterFile)
	}
	extra := t.has(extraWeights...)
	if len(t.has(adapterFile)) > 0 && !slices.Contains(extra, extraWeights[0]) {
		extra = append(extra, t.has("adapter_model.bin")...) // as PEFT wrote before 0.7
	}
	if need == NoWeights {
		return t.fetch(ctx, append(small, extra...))
	}
	weights, index := extra, ""
	for _, layout := range weightFiles {
		if len(t.has(layout.file)) > 0 {
			weights = append(weights, layout.file)
			break
		}
		if len(t.has(layout.index)) > 0 {
			index = layout.index
			small = append(small, index)
			break
		}
	}
	if len(weights) == 0 && index == "" {
		if t.cached {
			return t.absence("weights")
		}
		return errors.New("it has no weights in files of safetensors or PyTorch")
	}
	if err := t.fetch(ctx, small); err != nil {
		return err
	}
	if index != "" {
		data, err := os.ReadFile(filepath.Join(t.snapshot(t.commit), index))
		if err != nil {
			return err
		}
		shards, err := safetensors.ParseIndex(data, path.Ext(strings.TrimSuffix(index, ".index.json")))
		if err != nil {
			return fmt.Errorf("%s: %w", index, err)
		}
		weights = append(weights, slices.Compact(slices.Sorted(maps.Values(shards)))...)
	}
	return t.fetch(ctx, weights)
}

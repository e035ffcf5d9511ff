package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// Merge writes dir, which must be new or empty: the policy as one full model, every adapted weight W replaced by
// W + scale·B·A (Hu et al. 2021, section 4.1). LoadClassifier and LoadRewardModel read it; so does transformers without PEFT:
// as AutoModelForSequenceClassification with PoolFamily and PoolLast, as AutoModel and head.safetensors with PoolMean, as
// AutoModelForCausalLM with PoolScore. The value head is not written, since a merged model has no adapter to train.
//
// An encoder is written in float32; a language model in dtype, "" as the base model is stored, with its score layer in
// float32. The folder appears complete or not at all.
func (p *Classifier) Merge(dir, dtype string) error {
	write := p.writeMerged
	switch {
	case len(p.adapter.layers) == 0:
		return fmt.Errorf("merging: %s is a full model already", p.dir)
	case p.lm != nil:
		write = func(dir string) error { return p.writeMergedLanguageModel(dir, dtype) }
	case dtype != "":
		return errors.New("merging: an encoder is written in float32")
	}
	err := outfile.Folder(dir, func(dir string) error {
		if err := write(dir); err != nil {
			return err
		}
		return copyDecision(dir, p.source)
	})
	if err != nil {
		return fmt.Errorf("merging: %w", err)
	}
	return nil
}

// OnLanguageModel says whether the policy reads texts with a language model, not an encoder.
func (p *Classifier) OnLanguageModel() bool { return p.lm != nil }

func (p *Classifier) writeMergedLanguageModel(dir, dtype string) error {
	changes, err := p.lm.mergedChanges()
	if err != nil {
		return err
	}
	score, err := p.head.tensors()
	if err != nil {
		return err
	}
	if err := p.lm.model.Save(dir, transformers.SaveOptions{DType: dtype, Change: changes, Extra: score}); err != nil {
		return err
	}
	if err := p.saveRecords(dir); err != nil {
		return err
	}
	return p.saveConfig(dir, dir, func(config map[string]any) {
		var names []string
		if raw, _ := config["architectures"].(json.RawMessage); p.Pooling == PoolLast && json.Unmarshal(raw, &names) == nil && len(names) > 0 {
			config["architectures"] = []string{strings.Replace(names[0], "ForCausalLM", "ForSequenceClassification", 1)}
		}
	})
}

func (p *Classifier) writeMerged(dir string) error {
	tensors, err := p.mergedTensors()
	if err != nil {
		return err
	}
	architecture, classifier := p.config.Architectures()
	head, err := p.head.tensors()
	if err != nil {
		return err
	}
	if p.Pooling == transformers.PoolFamily {
		architecture = classifier
		tensors = append(tensors, head...)
	} else if err := safetensors.Write(filepath.Join(dir, headFile), head, nil); err != nil {
		return err
	} else if err := p.saveMeanPooling(dir); err != nil {
		return err
	}
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil); err != nil {
		return err
	}
	err = p.saveCommon(dir, func(config map[string]any) {
		config["architectures"] = []string{architecture}
		for _, key := range []string{"dtype", "torch_dtype"} {
			if _, ok := config[key]; ok {
				config[key] = "float32"
			}
		}
	})
	if err != nil {
		return err
	}
	return files.SaveJSON(filepath.Join(dir, "id2label.json"), p.id2Label())
}

// mergedTensors are the base model's tensors under the names of the merged model, adapters added.
func (p *Classifier) mergedTensors() ([]safetensors.Tensor, error) {
	files, err := safetensors.OpenModel(p.dir)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	names, err := p.config.Resolve(files)
	if err != nil {
		return nil, err
	}
	changes, err := p.adapter.changes(p.config)
	if err != nil {
		return nil, err
	}
	var tensors []safetensors.Tensor
	for _, spec := range p.config.TensorNames() {
		stored, ok := names[spec.Name]
		if !ok || spec.Group == "head" { // the policy has its own head
			continue
		}
		name := spec.Prefix + spec.Path
		if p.Pooling == transformers.PoolMean {
			if spec.Prefix == "" { // of task models alone
				continue
			}
			name = spec.Path
		}
		data, err := spec.Read(files, stored)
		if err != nil {
			return nil, err
		}
		if change := changes[spec.Path]; change != nil {
			change(data)
		}
		tensors = append(tensors, safetensors.FromFloat32s(name, spec.Shape, data))
	}
	return tensors, nil
}

// saveMeanPooling writes sentence-transformers' files for mean pooling. The base model's may add a normalisation, which the
// head does not expect.
func (p *Classifier) saveMeanPooling(dir string) error {
	type module struct {
		Index int    `json:"idx"`
		Name  string `json:"name"`
		Path  string `json:"path"`
		Type  string `json:"type"`
	}
	const folder = "1_Pooling"
	if err := files.SaveJSON(filepath.Join(dir, "modules.json"), []module{
		{0, "0", "", "sentence_transformers.models.Transformer"},
		{1, "1", folder, "sentence_transformers.models.Pooling"},
	}); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
		return err
	}
	return files.SaveJSON(filepath.Join(dir, folder, "config.json"), map[string]any{
		"word_embedding_dimension": p.config.HiddenSize,
		"pooling_mode_cls_token":   false, "pooling_mode_mean_tokens": true,
		"pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
	})
}

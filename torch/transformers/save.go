package transformers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// SaveOptions says how a model is saved.
type SaveOptions struct {
	// Change is that of CausalOptions: it changes weights as stored in the folder, or as trained. Changes made by
	// LoadCausal must be made again.
	Change map[string]func(weight []float32)
	// DType of the weights: "fp32", "bf16" or "fp16"; "" as stored in the folder, or float32 for trained weights.
	// Quantised weights are written dequantised.
	DType string
	// Extra tensors are written with the weights, such as the score layer of a sequence classifier.
	Extra []safetensors.Tensor
}

// Save fills the existing folder dir with the model: weights under the names of its original folder, config.json with
// only dtype and tie_word_embeddings updated, and the other files of a model unchanged. Tensors that the model does not
// use, such as a vision tower, are copied.
func (c *Causal) Save(dir string, o SaveOptions) error {
	if err := c.save(dir, o); err != nil {
		return fmt.Errorf("transformers: saving %s: %w", dir, err)
	}
	return nil
}

// LoadWeights overwrites trainable weights with those of a folder that Save wrote.
func (c *Causal) LoadWeights(dir string) error {
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		return err
	}
	defer files.Close()
	names, err := c.Config.Resolve(files)
	if err != nil {
		return err
	}
	for _, spec := range c.Config.TensorNames() {
		v, ok := c.Weights[spec.Name]
		if !ok {
			continue
		}
		data, err := spec.Read(files, names[spec.Name])
		if err == nil {
			err = v.Write(data)
		}
		if err != nil {
			return fmt.Errorf("transformers: %s: %s: %w", dir, spec.Name, err)
		}
	}
	return nil
}

var fileDTypes = map[string]safetensors.DType{"fp32": safetensors.F32, "bf16": safetensors.BF16, "fp16": safetensors.F16}

// configDTypes are the names of dtypes in config.json.
var configDTypes = map[safetensors.DType]string{safetensors.F32: "float32", safetensors.BF16: "bfloat16", safetensors.F16: "float16"}

func (c *Causal) save(dir string, o SaveOptions) error {
	dtype, ok := fileDTypes[o.DType]
	if !ok && o.DType != "" {
		return fmt.Errorf("dtype %.40q, want fp32, bf16 or fp16", o.DType)
	}
	if !ok && c.Trainable {
		dtype = safetensors.F32
	}
	files, err := safetensors.OpenModel(c.Dir)
	if err != nil {
		return err
	}
	defer files.Close()
	sources, err := c.sources(files, o.Change, dtype)
	if err != nil {
		return err
	}
	for _, t := range o.Extra {
		sources = append(sources, safetensors.Source{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: func() ([]byte, error) { return t.Data, nil }})
	}
	if err := safetensors.WriteSources(filepath.Join(dir, "model.safetensors"), sources, nil); err != nil {
		return err
	}
	if err := copyConfig(dir, c.Dir, dtype, c.untied); err != nil {
		return err
	}
	return CopyExtras(dir, c.Dir)
}

// sources are all tensors of the folder, with the model's current weights.
func (c *Causal) sources(files *safetensors.Model, change map[string]func([]float32), dtype safetensors.DType) ([]safetensors.Source, error) {
	config := *c.Config
	config.TieWordEmbeddings = config.TieWordEmbeddings || c.untied // as stored in the folder
	names, err := config.Resolve(files)
	if err != nil {
		return nil, err
	}
	changes, err := c.Config.changes(change)
	if err != nil {
		return nil, err
	}
	specs := map[string][]TensorSpec{} // by name in the folder
	repeated := map[string]bool{}      // output layers that only repeat the embedding
	for _, spec := range config.TensorNames() {
		if name, ok := names[spec.Name]; ok {
			specs[name] = append(specs[name], spec)
			continue
		}
		for _, name := range spec.Candidates {
			repeated[name] = true
		}
	}
	var sources []safetensors.Source
	for _, name := range files.Names() {
		_, entry, _ := files.Entry(name)
		parts := specs[name]
		source := safetensors.Source{Name: name, DType: entry.DType, Shape: entry.Shape}
		switch {
		case repeated[name] || isNF4Part(files, name):
			continue
		case len(parts) == 0:
			source.Data = func() ([]byte, error) { return files.Bytes(name) }
		default:
			if packed(entry) || isNF4(files, name) {
				source.DType, source.Shape = safetensors.BF16, parts[0].stored(parts[0].part(name))
			}
			if dtype != "" {
				source.DType = dtype
			}
			source.Data = func() ([]byte, error) { return c.stored(files, name, parts, source, changes) }
		}
		sources = append(sources, source)
		if len(parts) == 1 && parts[0].Name == "embed.weight" && c.untied {
			head := c.Config.headSpec()
			source.Name = head.Candidates[0]
			source.Data = func() ([]byte, error) { return c.stored(files, name, []TensorSpec{head}, source, changes) }
			sources = append(sources, source)
		}
	}
	return sources, nil
}

// stored returns the data of the folder's tensor name, which is that of parts, as stored in the file that source describes.
func (c *Causal) stored(files *safetensors.Model, name string, parts []TensorSpec, source safetensors.Source, changes map[string]func([]float32)) ([]byte, error) {
	_, entry, _ := files.Entry(name)
	same := entry.DType == source.DType
	for _, spec := range parts {
		_, quantised := c.quants[spec.Name]
		same = same && !c.Trains(spec.Name) && !quantised && changes[spec.Name] == nil
	}
	if same {
		return files.Bytes(name)
	}
	size := int64(1)
	for _, d := range source.Shape {
		size *= d
	}
	all := make([]float32, size)
	for _, spec := range parts {
		data, err := c.current(files, name, spec)
		if err != nil {
			return nil, err
		}
		if change := changes[spec.Name]; change != nil {
			change(data)
		}
		part := spec.part(name)
		each := len(all) / part.Len
		spec.put(data, all[part.At*each:(part.At+1)*each], part)
	}
	return safetensors.FromFloat32sAs(source.DType, source.Name, source.Shape, all).Data, nil
}

// current returns a weight as it is now, in the shape of its spec.
func (c *Causal) current(files *safetensors.Model, name string, spec TensorSpec) ([]float32, error) {
	if c.Trains(spec.Name) {
		return c.Weights[spec.Name].Read()
	}
	if _, quantised := c.quants[spec.Name]; quantised {
		return c.dequantized(spec)
	}
	return spec.Read(files, name)
}

// copyConfig copies config.json. With a dtype it updates the field that names it, at the top and in nested objects;
// with untied it sets tie_word_embeddings to false.
func copyConfig(dir, from string, dtype safetensors.DType, untied bool) error {
	path := filepath.Join(from, "config.json")
	data, err := smallfile.Read(path)
	if err != nil {
		return err
	}
	quantised := bytes.Contains(data, []byte(quantKey))
	if dtype != "" || untied || quantised {
		raw, err := files.Object(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		delete(raw, quantKey) // weights are written dequantised
		if untied {
			if err := untie(raw); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		if dtype != "" && nameDType(raw, configDTypes[dtype]) || untied || quantised {
			if data, err = json.MarshalIndent(raw, "", "  "); err != nil {
				return err
			}
			data = append(data, '\n')
		}
	}
	return outfile.Write(filepath.Join(dir, "config.json"), data, 0o644)
}

// quantKey is where config.json describes quantised weights.
const quantKey = "quantization_config"

// untie sets tie_word_embeddings to false.
func untie(raw map[string]json.RawMessage) error {
	const key = "tie_word_embeddings"
	raw[key] = []byte("false")
	text, ok := raw["text_config"]
	if !ok {
		return nil
	}
	inner, err := files.Object(text)
	if err != nil {
		return err
	}
	inner[key] = []byte("false")
	raw["text_config"], err = json.Marshal(inner)
	return err
}

// nameDType sets the dtype and reports whether it changed.
func nameDType(raw map[string]json.RawMessage, name string) bool {
	want, changed := []byte(`"`+name+`"`), false
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		switch {
		case key == "dtype" || key == "torch_dtype":
			if !bytes.Equal(raw[key], want) {
				raw[key], changed = want, true
			}
		case key == "text_config":
			inner, err := files.Object(raw[key])
			if err != nil || !nameDType(inner, name) {
				continue
			}
			if text, err := json.Marshal(inner); err == nil {
				raw[key], changed = text, true
			}
		}
	}
	return changed
}

// extras are the files of a model folder other than weights and config.json.
var extras = []string{
	"generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "spm.model",
	"chat_template.jinja", "chat_template.json", "additional_chat_templates",
	"preprocessor_config.json", "processor_config.json",
}

// CopyExtras copies the remaining files of a model folder into dir unchanged: tokenizer, chat templates and
// generation_config.json.
func CopyExtras(dir, from string) error {
	for _, name := range extras {
		source := filepath.Join(from, name)
		info, err := os.Stat(source)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("transformers: %w", err)
		}
		if info.IsDir() {
			err = os.CopyFS(filepath.Join(dir, name), os.DirFS(source))
		} else {
			err = copyFile(filepath.Join(dir, name), source)
		}
		if err != nil {
			return fmt.Errorf("transformers: copying %s: %w", source, err)
		}
	}
	return nil
}

func copyFile(to, from string) error {
	data, err := smallfile.ReadAll(from)
	if err != nil {
		return err
	}
	return outfile.Write(to, data, 0o644)
}

// Command models writes docs/models.md.
//
//	go run ./scripts/models
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/transformers"
)

func main() {
	page, err := models(".")
	if err == nil {
		err = outfile.Write(filepath.Join("docs", "models.md"), []byte(page), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "models:", err)
		os.Exit(1)
	}
}

// A note is what the tables of families do not say.
type note struct {
	as           string // what config.json has, if not model_type alone
	models, more string // published models; choices that fields of config.json make
	refused      string
	gpu          string // "" for not tried
}

const (
	tested       = "tested"
	refusedThere = "refused"

	gemma3n = "norms of values; windows, two RoPEs; inputs to each layer, layers with keys of earlier ones; AltUp, LAuReL, sparse MLPs in some"
	unified = "norms of values; windows, two RoPEs, two widths of heads; layers with keys of earlier ones"
	gemma4  = "norms of values; windows, two RoPEs, two widths of heads; inputs to each layer, layers with keys of earlier ones; experts beside the MLP in some"
)

var notes = map[string]note{
	"cohere2":             {models: "Command R7B, Tiny Aya", more: "windows; no positions on other layers", refused: "`use_qk_norm`"},
	"exaone4":             {models: "EXAONE 4.0", more: "windows; then no positions on other layers", refused: "`sliding_window_pattern` in letters without `layer_types`"},
	"gemma2":              {models: "Gemma 2", more: "windows, soft caps", refused: "`use_bidirectional_attention`", gpu: tested},
	"gemma3":              {models: "Gemma 3 4B to 27B", more: "text part; windows, two RoPEs", refused: "images", gpu: tested},
	"gemma3_text":         {models: "Gemma 3 270M, 1B", more: "windows, two RoPEs", refused: "`use_bidirectional_attention`", gpu: tested},
	"gemma3n":             {models: "Gemma 3n E2B, E4B", more: gemma3n, refused: "images, sounds", gpu: refusedThere},
	"gemma3n_text":        {models: "Gemma 3n E2B, E4B", more: gemma3n, refused: "`altup_active_idx` above 0", gpu: refusedThere},
	"gemma4":              {models: "Gemma 4 E2B, E4B, 26B-A4B, 31B", more: gemma4, refused: "images, sounds", gpu: refusedThere},
	"gemma4_text":         {models: "Gemma 4 E2B, E4B, 26B-A4B, 31B", more: gemma4, refused: "`use_bidirectional_attention` \"all\"", gpu: refusedThere},
	"gemma4_unified":      {models: "Gemma 4 12B", more: unified, refused: "images, sounds", gpu: refusedThere},
	"gemma4_unified_text": {models: "Gemma 4 12B", more: unified, refused: "`use_bidirectional_attention` \"all\"", gpu: refusedThere},
	"glm4":                {models: "GLM-4 0414"},
	"gpt2":                {models: "GPT-2, DistilGPT2", refused: "`scale_attn_by_inverse_layer_idx`, `add_cross_attention`", gpu: tested},
	"gpt_neox":            {models: "Pythia, GPT-NeoX", more: "or one after the other", gpu: tested},
	"granite":             {models: "Granite 3", more: "multipliers"},
	"granitemoehybrid":    {models: "Granite 4 Micro, 350M, 1B", more: "multipliers; no positions; experts in some", refused: "Mamba layers"},
	"llama":               {models: "Llama 2 and 3, TinyLlama, SmolLM, SmolLM2", gpu: tested},
	"ministral":           {models: "Ministral 8B 2410", more: "windows"},
	"ministral3":          {models: "Devstral 2", more: "YaRN; queries grow with positions", gpu: "not tried; generation on a CPU only"},
	"mistral":             {models: "Mistral 7B, Mistral Small", more: "windows"},
	"gpt_oss":             {models: "gpt-oss 20B, 120B", more: "sinks, windows, YaRN", gpu: refusedThere},
	"lfm2":                {models: "LFM2 350M to 2.6B", more: "layers of gated convolutions", gpu: refusedThere},
	"lfm2_moe":            {models: "LFM2 8B-A1B", more: "sigmoid router; layers of gated convolutions, some without experts", gpu: refusedThere},
	"mixtral":             {models: "Mixtral 8x7B, 8x22B", more: "windows", gpu: refusedThere},
	"olmoe":               {models: "OLMoE", refused: "`clip_qkv`", gpu: refusedThere},
	"qwen2_moe":           {models: "Qwen1.5-MoE, Qwen2 57B-A14B", more: "windows; some layers without experts", refused: "`qkv_bias` false", gpu: refusedThere},
	"qwen3_5":             {models: "Qwen3.5 dense", more: "text part; three layers of four with gated delta rules, gated attention", refused: "images", gpu: refusedThere},
	"qwen3_5_text":        {models: "Qwen3.5 dense", more: "three layers of four with gated delta rules, gated attention", gpu: refusedThere},
	"qwen3_5_moe":         {models: "Qwen3.5 35B-A3B, 122B-A10B", more: "text part; three layers of four with gated delta rules, gated attention", refused: "images", gpu: refusedThere},
	"qwen3_5_moe_text":    {models: "Qwen3.5 35B-A3B, 122B-A10B", more: "three layers of four with gated delta rules, gated attention", gpu: refusedThere},
	"qwen3_moe":           {models: "Qwen3 30B-A3B, 235B-A22B, Qwen3-Coder", more: "windows; some layers without experts", gpu: refusedThere},
	"granitemoe":          {models: "Granite 3 1B-A400M, 3B-A800M", more: "multipliers", gpu: refusedThere},
	"mistral3":            {models: "Ministral 3, Mistral Small 3.1", more: "text part; mistral or ministral3", refused: "images", gpu: "as the text part"},
	"olmo2":               {models: "OLMo 2"},
	"olmo3":               {models: "Olmo 3", more: "windows, two RoPEs"},
	"phi":                 {models: "Phi-1, 1.5, 2", refused: "`qk_layernorm`", gpu: tested},
	"phi3":                {models: "Phi-3, Phi-3.5, Phi-4", more: "windows, LongRoPE", gpu: tested},
	"qwen2":               {models: "Qwen2, Qwen2.5", more: "windows", gpu: tested},
	"qwen3":               {models: "Qwen3", more: "windows", gpu: tested},
	"smollm3":             {models: "SmolLM3", more: "layers without positions, windows"},
	"stablelm":            {models: "StableLM 2, 3B", refused: "`use_parallel_residual`, `qk_layernorm`"},
	"starcoder2":          {models: "StarCoder2", more: "windows"},

	"bert":       {models: "BERT, MiniLM, e5, bge, gte (small and base)", gpu: tested},
	"distilbert": {models: "DistilBERT", gpu: tested},
	"jina_bert":  {as: "`bert`, `alibi`", models: "jina-embeddings-v2-small-en, base-en", refused: "`feed_forward_type` original"},
	"jina_bert_code": {as: "`bert`, `alibi`, qk-post-norm", models: "jina-embeddings-v2-base-code", more: "two norms after attention",
		refused: "`feed_forward_type` original"},
	"modernbert":  {models: "ModernBERT, Ettin, mmBERT", more: "windows", gpu: tested},
	"roberta":     {models: "RoBERTa", gpu: tested},
	"xlm-roberta": {models: "XLM-RoBERTa, multilingual e5, bge-m3", gpu: tested},
	"electra":     {models: "ELECTRA"},
	"albert":      {models: "ALBERT v1, v2", more: "one layer for all", refused: "`num_hidden_groups`, `inner_group_num` above 1"},
	"mpnet":       {models: "MPNet, all-mpnet-base-v2", more: "biases by distance"},
	"deberta-v2":  {models: "DeBERTa v3", more: "queries and keys of distances", refused: "`conv_kernel_size`, `share_att_key` false, one of c2p and p2c"},
	"camembert":   {models: "CamemBERT", gpu: tested},
	"eurobert":    {models: "EuroBERT"},
	"nomic_bert":  {models: "nomic-embed-text v1, v1.5", more: "up to the trained length", refused: "`rotary_emb_interleaved`, `prenorm`, biases of attention and MLP"},
}

// models is the page, of the families in transformers and the fixtures below root.
func models(root string) (string, error) {
	compared, err := fixtures(filepath.Join(root, "torch", "transformers", "testdata"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(intro)
	decoding, encoding := transformers.ModelTypes()
	for _, kind := range []struct {
		title string
		types []string
	}{{"Language models", decoding}, {"Encoders", encoding}} {
		fmt.Fprintf(&b, "\n## %s\n\n| model_type | models | blocks | refused | compared | GPU |\n| --- | --- | --- | --- | ---: | --- |\n", kind.title)
		for _, t := range kind.types {
			n, ok := notes[t]
			if !ok || compared[t] == 0 {
				return "", fmt.Errorf("model_type %s has no note, or no fixture", t)
			}
			blocks := strings.Join(transformers.Choices(t), ", ")
			if n.more != "" {
				blocks += "; " + n.more
			}
			if n.gpu == "" {
				n.gpu = "not tried"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %s |\n", cmp.Or(n.as, "`"+t+"`"), n.models, blocks, n.refused, compared[t], n.gpu)
		}
	}
	b.WriteString(outro)
	return b.String(), nil
}

// fixtures counts the configurations of each model_type that tests compare with transformers.
func fixtures(root string) (map[string]int, error) {
	count := map[string]int{}
	files, err := filepath.Glob(filepath.Join(root, "*", "*", "config.json"))
	if err != nil {
		return nil, err
	}
	more, err := filepath.Glob(filepath.Join(root, "*", "config.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range append(files, more...) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var config struct {
			ModelType string `json:"model_type"`
			Positions string `json:"position_embedding_type"`
		}
		if err := json.Unmarshal(data, &config); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if config.Positions == "alibi" {
			encoder, err := transformers.LoadConfig(filepath.Dir(file))
			if err != nil {
				return nil, err
			}
			config.ModelType = encoder.ModelType
		}
		count[config.ModelType]++
	}
	return count, nil
}

const intro = `# Models

This page is generated by ` + "`go run ./scripts/models`" + `. A model is a folder, a name on the Hugging Face Hub, or a GGUF file; see
[chat](chat.md#models). Its family is ` + "`model_type`" + ` of config.json.

All language models load, generate, serve, score, classify and train, with LoRA and with all weights, and are saved in the form of
transformers. Encoders classify and give features. All read their tokenizer from tokenizer.json
(DeBERTa's from spm.model too) and their chat template from the folder. Tests compare both with transformers: published
templates, and tokenizers of the published classes and special tokens with small vocabularies.

- **compared**: configurations with random weights whose logits, greedy tokens and gradients tests compare with transformers.
  It has no class for jina v2. The reference there is scripts/fixtures/jina.py, this project's reading of the published modules.
- **GPU**: "tested" where the family's kinds of blocks have run on an H100; the operators of the others have run on a CPU only.
  Models with experts, convolutions, delta rules or norms of values are refused there.
- **refused**: what config.json may ask for and rltrain does not do; loading fails and names the field.
`

const outro = `
## Fields of config.json

rltrain reads both dialects, of transformers 4 and 5, with transformers' defaults. A field that it does not know is an error if it
is on and its name is about what a model computes, such as ` + "`attention_sinks`" + `. ` + "`rltrain doctor --model DIR`" + ` lists the other unknown
fields. Remove a field from config.json if you know that it changes nothing.

## Quantised weights

A folder whose config.json has ` + "`quantization_config`" + ` loads like any other. Adapters train on it, and ` + "`rltrain export`" + ` writes the merged
model with dense weights.

| ` + "`quant_method`" + ` | formats | in memory |
| --- | --- | --- |
| ` + "`bitsandbytes`" + ` | NF4, also with double quantisation | 4 bits |
| ` + "`bitsandbytes`" + ` | 8 bits | float16 |
| ` + "`gptq`" + ` | gptq and gptq_v2 with 2, 3, 4 or 8 bits, also in order of activation | the scales' dtype |
| ` + "`awq`" + ` | gemm, 4 bits | the scales' dtype |
| ` + "`fp8`" + ` | blocks or one scale, also scales that are powers of two | bfloat16 |
| ` + "`mxfp4`" + ` | experts of gpt-oss | bfloat16 |
| ` + "`compressed-tensors`" + ` | pack-quantized with 1 to 8 bits, int-quantized, float-quantized, naive-quantized | the scales' dtype |

GGUF files keep their blocks. Weights have the bits that the package itself dequantises to. Activations are not quantised. ` + "`--quantize`" + `
packs them again, to nf4 or int8, where memory is short. In training and generation, layers compute with the dequantised values: in
bfloat16, or in float32 if the processor has no bfloat16 products (` + "`rltrain doctor`" + ` names the instruction set), where rounding
would take longer than the product. The output layer of a GGUF file is always bfloat16.

## Models with experts

` + "`--lora-target-parameters mlp.experts.gate_up_proj,mlp.experts.down_proj`" + ` puts adapters on the experts, beside those of
` + "`--lora-target-modules`" + `. Names are those of transformers 5, where Granite's and LFM2's end otherwise before ` + "`experts`" + `.
The adapters have the form of PEFT's ` + "`target_parameters`" + ` and take no dropout. ` + "`rltrain merge`" + ` writes them into the weights.
Adapters that PEFT saved with transformers 4, a pair for each linear layer of each expert, load too. rltrain joins their pairs as PEFT
0.21 does, and trains and saves them in today's form, without dropout.

Tokens that rltrain sampled pass the same experts in training as in sampling, prompts included (router replay). A router near a tie
then changes neither log π nor the importance ratio. Tokens of data sets and of ` + "`--rollout-url`" + ` go where the router sends them.

## Not supported

- adapters on routers
- recurrent layers: mamba, Granite 4 H; qwen3_next
- adapters on Gemma 3n's AltUp (altup_projections, altup_unembed_projections, modality_router, coefficients): all-linear skips them here,
  while PEFT's all-linear adapts them, and rltrain refuses such an adapter by the module's name
- quantised weights in other formats than those of the next section
- classifiers of gemma3n, gemma4, gemma4_unified, granite, granitemoehybrid, cohere2 and mistral3 load in rltrain only: transformers has no class for them
`

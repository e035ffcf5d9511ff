package transformers

import (
	"fmt"
	"maps"
)

// RegisterFamily registers a model_type whose models have the architecture of another one, such as a renamed Llama.
// fields maps the usual names of config.json fields to its spellings; it may be nil. Call it from an init function. It
// panics if modelType is taken or like is unknown.
func RegisterFamily(modelType, like string, fields map[string]string) {
	fam := families[like]
	if modelType == "" || families[modelType] != nil || fam == nil {
		panic(fmt.Sprintf("transformers.RegisterFamily: model_type %q is empty or taken, or %q is unknown", modelType, like))
	}
	row := *fam
	row.own = map[string]string{}
	maps.Copy(row.own, fam.own)
	maps.Copy(row.own, fields)
	families[modelType] = &row
	if row.encoder != nil {
		encoders[modelType] = &row
	} else {
		decoders[modelType] = &row
	}
}

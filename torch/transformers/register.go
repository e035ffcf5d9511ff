package transformers

import (
	"fmt"
	"maps"
)

// RegisterFamily makes a model_type known whose models are built like those of another one, such as a Llama under a name of
// its own. fields are its spellings of the fields of config.json, by the usual ones; it may be nil. Call it from an init
// function. It panics if modelType is taken or like is unknown.
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

"""Support checks: what a model needs against what Trainium's compiler is known to take."""

// What every page runs.
import "./charts.js";

// Points drawn with WebGL: one round dot each, in colours of its own.

const VERTEX = `
attribute vec2 place; attribute vec4 colour; uniform vec2 zoom; uniform vec2 shift; uniform float size; varying vec4 shown; varying float soft;
void main() { gl_Position = vec4(place * zoom + shift, 0, 1); gl_PointSize = size; shown = colour; soft = 2.0 / size; }`;
const FRAGMENT = `
precision mediump float; varying vec4 shown; varying float soft;
void main() {
  float alpha = shown.a * (1.0 - smoothstep(1.0 - soft, 1.0, 2.0 * length(gl_PointCoord - 0.5)));
  gl_FragColor = vec4(shown.rgb * alpha, alpha);
}`;

export class Points {
  #gl; #places; #colours; #uniforms; #layers = [];

  /** @param {HTMLCanvasElement} canvas Gets a WebGL context; a transparent ground. */
  constructor(canvas) {
    const gl = this.#gl = canvas.getContext('webgl', {antialias: false, premultipliedAlpha: true});
    const program = gl.createProgram();
    for (const [kind, text] of /** @type {[number, string][]} */ ([[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]])) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.#places = gl.getAttribLocation(program, 'place');
    this.#colours = gl.getAttribLocation(program, 'colour');
    this.#uniforms = Object.fromEntries(['zoom', 'shift', 'size'].map(name => [name, gl.getUniformLocation(program, name)]));
    gl.enableVertexAttribArray(this.#places);
    gl.enableVertexAttribArray(this.#colours);
  }

  /**
   * Set what is drawn, one layer over the other.
   * @param {{places: Float32Array, colours: Uint8Array, extra: number}[]} layers Places x, y of each point, its red,
   *   green, blue and opacity, and by how many pixels its dots are larger.
   */
  set layers(layers) {
    const gl = this.#gl;
    for (const {buffers} of this.#layers) buffers.forEach(buffer => gl.deleteBuffer(buffer));
    this.#layers = layers.map(({places, colours, extra}) => ({count: places.length / 2, extra, buffers: [places, colours].map(values => {
      const buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
      return buffer;
    })}));
  }

  /**
   * Draw.
   * @param {{zoom: number[], shift: number[]}} view From places to the canvas, whose sides are -1 and 1.
   * @param {number} size Diameter of a dot, in pixels of the canvas.
   */
  draw({zoom, shift}, size) {
    const gl = this.#gl;
    gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(this.#uniforms.zoom, ...zoom);
    gl.uniform2f(this.#uniforms.shift, ...shift);
    for (const {count, extra, buffers: [places, colours]} of this.#layers) {
      gl.uniform1f(this.#uniforms.size, size + extra);
      gl.bindBuffer(gl.ARRAY_BUFFER, places);
      gl.vertexAttribPointer(this.#places, 2, gl.FLOAT, false, 0, 0);
      gl.bindBuffer(gl.ARRAY_BUFFER, colours);
      gl.vertexAttribPointer(this.#colours, 4, gl.UNSIGNED_BYTE, true, 0, 0);
      gl.drawArrays(gl.POINTS, 0, count);
    }
  }
}
